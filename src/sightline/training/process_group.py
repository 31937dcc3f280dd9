"""The collective over torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from sightline.training import devices
from sightline.training.collective import LostWorkers
from sightline.training.precision import num_gpus
from sightline.training.shared_memory import share_memory

_PATIENCE = timedelta(minutes=30)
"""How long a worker waits for the others in one call. Workers that hang are noticed by their heartbeat, long before."""


class ProcessGroup:
    """The workers of the process group that this process has joined."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._shared = share_memory(self.rank, self.size, self.gather)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the tensor over all workers, in place."""
        if self._shared and self._shared.takes(tensor):
            return self._shared.all_reduce(tensor)
        with _losses_named():
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, in place."""
        with _losses_named():
            dist.broadcast(tensor, src=0)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, by rank, on every worker."""
        values: list[Any] = [None] * self.size
        with _losses_named():
            dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self.all_reduce(torch.zeros(1))  # On the CPU: NCCL's own barrier would have to guess a device.


@contextmanager
def _losses_named() -> Iterator[None]:
    """Gloo and NCCL say that a worker is gone by a RuntimeError of many shapes."""
    try:
        yield
    except RuntimeError as error:
        raise LostWorkers(str(error)) from error


@contextmanager
def joined(device: torch.device) -> Iterator[ProcessGroup]:
    """Join the workers that the environment names: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    if dist.is_initialized():  # By Ray Train, or by whoever called us.
        yield ProcessGroup()
        return
    with _losses_named():
        dist.init_process_group(backend_for(device), timeout=_PATIENCE, **_meeting_point(os.environ))
    try:
        yield ProcessGroup()
    finally:
        dist.destroy_process_group()


def _meeting_point(environment: Mapping[str, str]) -> dict[str, Any]:
    """Where workers find each other, if not as usual.

    torch's elastic launcher keeps one store for all attempts; addresses of workers that are gone still stand in it.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store = TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), timeout=_PATIENCE)
    attempt = PrefixStore(f"sightline-{environment['TORCHELASTIC_RESTART_COUNT']}", store)
    return {"store": attempt, "rank": int(environment["RANK"]), "world_size": int(environment["WORLD_SIZE"])}


def backend_for(device: torch.device) -> str:
    """See `devices.backend_for`; torchrun and our own launcher say how many workers are on this machine."""
    workers_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    shared = device.type == "cuda" and workers_here > num_gpus()
    return devices.backend_for(device.type, shared=shared)
