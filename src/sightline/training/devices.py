"""Which device each worker of a machine computes on, and what carries gradients between them."""

from dataclasses import dataclass
from typing import Literal

from sightline.errors import ConfigError

DeviceType = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class DevicePlan:
    """The devices of the workers on one machine.

    Attributes:
        devices: Names as torch takes them, such as "cuda:1", by local rank.
        shared: Whether several workers compute on one GPU.
        backend: For `torch.distributed.init_process_group`.
        note: What the user should know; empty if nothing.
    """

    devices: tuple[str, ...]
    shared: bool
    backend: str
    note: str = ""


def plan_devices(requested: str, *, workers: int, gpus: int) -> DevicePlan:
    """One GPU for each worker where there are enough; else workers share GPUs, or compute on the CPU.

    Args:
        requested: The setting `train.device`: auto, cpu or cuda.
        workers: On this machine.
        gpus: Of this machine.

    Raises:
        ConfigError: A GPU was requested, and there is none.
    """
    if device_type(requested, gpus=gpus) == "cpu":
        return DevicePlan(("cpu",) * workers, shared=False, backend=backend_for("cpu", shared=False))
    shared = workers > gpus
    note = (
        f"{workers} workers share {gpus} GPU{'s' if gpus > 1 else ''}: one worker for each GPU is usually faster "
        f"(--workers {gpus})"
    )
    return DevicePlan(
        devices=tuple(f"cuda:{rank % gpus}" for rank in range(workers)),
        shared=shared,
        backend=backend_for("cuda", shared=shared),
        note=note if shared else "",
    )


def device_type(requested: str, *, gpus: int, setting: str = "train.device") -> DeviceType:
    """What a device setting means on a machine with so many GPUs.

    Raises:
        ConfigError: A GPU was requested, and there is none.
    """
    if requested.startswith("cuda") and not gpus:
        raise ConfigError(
            f"{setting} is {requested!r}, and torch finds no GPU on this machine: leave it out or give 'cpu', or check "
            "with `nvidia-smi` that there is one and that torch was installed with CUDA"
        )
    return "cuda" if gpus and requested != "cpu" else "cpu"


def backend_for(device: str, *, shared: bool) -> str:
    """What torch.distributed communicates over; counts and ids are on the CPU even where gradients are not.

    Args:
        device: "cpu" or "cuda".
        shared: Whether workers share a GPU, which NCCL refuses.
    """
    if device == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:gloo" if shared else "cpu:gloo,cuda:nccl"
