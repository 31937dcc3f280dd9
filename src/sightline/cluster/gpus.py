"""The GPUs of this machine. torch, which is slow to import, is asked only where there is a driver."""

import ctypes
from pathlib import Path

_CUDA_DRIVER = "libcuda.so.1"
_ROCM_DEVICES = (Path("/dev/kfd"), Path("/dev/dxg"))
"""Of AMD's driver, on Linux and on WSL."""


def num_gpus() -> int:
    """GPUs that torch can use on this machine."""
    if not has_driver():
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_driver() -> bool:
    """Whether a driver for NVIDIA's or AMD's GPUs is installed."""
    if any(device.exists() for device in _ROCM_DEVICES):
        return True
    try:
        ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        return False
    return True
