"""Mixed precision: the forward pass in fewer bits, and a scale that keeps small gradients in float16's range."""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from sightline.cluster.gpus import num_gpus
from sightline.training.devices import device_type, plan_devices

PrecisionName = Literal["float32", "bfloat16", "float16"]


def pick_device(name: str, *, index: int | None = None) -> torch.device:
    """The device that a setting names.

    Args:
        index: Which of the machine's GPUs; None for the current one.

    Raises:
        ConfigError: It names a GPU, and there is none.
    """
    gpus = num_gpus()
    kind = device_type(name, gpus=gpus)
    if kind == "cpu" or index is None:
        return torch.device(kind)
    device = torch.device(kind, index % gpus)
    torch.cuda.set_device(device)
    return device


def place_worker(requested: str, *, local_rank: int, workers_here: int) -> tuple[torch.device, str]:
    """The device of one of the workers on this machine, and the backend over which they communicate."""
    plan = plan_devices(requested, workers=workers_here, gpus=num_gpus())
    device = torch.device(plan.devices[local_rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device, plan.backend


def pick_precision(
    name: Literal["auto"] | PrecisionName, device: torch.device, *, depthwise: bool = False
) -> PrecisionName:
    """What `auto` means on a device: fewer bits only where they are faster.

    Args:
        depthwise: Whether the model's time goes into depthwise convolutions, which gain nothing on a CPU.
    """
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(False) else "float32"
    return "bfloat16" if _multiplies_bfloat16() and not depthwise else "float32"


def _multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it; where it is emulated, it is many times slower than float32."""
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


class Precision:
    """How a run computes. Weights, gradients and the optimizer stay in float32."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self._device = device.type
        self._dtype = torch.float16 if name == "float16" else torch.bfloat16
        self._enabled = name != "float32"
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    def forward(self) -> AbstractContextManager[Any]:
        """Surrounds one forward pass."""
        return torch.autocast(self._device, self._dtype, enabled=self._enabled)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradients do not vanish in float16."""
        return self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their true size."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer step, unless the gradients overflowed; then the scale is lowered instead."""
        self._scaler.step(optimizer)
        self._scaler.update()

    @property
    def may_overflow(self) -> bool:
        """Whether gradients that are not finite may be the scale's fault rather than the model's."""
        return self._scaler.is_enabled() and self._scaler.get_scale() > 1

    def state_dict(self) -> dict[str, Any]:
        """The scale and when it last changed; empty where there is none."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a scale that was saved."""
        if state:
            self._scaler.load_state_dict(state)
