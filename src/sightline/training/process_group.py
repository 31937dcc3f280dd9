"""The collective over torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from sightline.training.collective import WorkerLostError
from sightline.training.heartbeat import Activity
from sightline.training.rendezvous import COLLECTIVE_TIMEOUT
from sightline.training.shared_memory import share_memory
from sightline.training.wire import send_tree


class ProcessGroup:
    """The workers of the process group that this process has joined."""

    def __init__(self, activity: Activity | None = None) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._activity = activity or Activity()
        self._shared = share_memory(self.rank, self.size, self.gather)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the tensor over all workers, in place."""
        with self._peers():
            if self._shared and self._shared.takes(tensor):
                return self._shared.all_reduce(tensor)
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Rank 0's tensor, in place."""
        with self._peers():
            dist.broadcast(tensor, src=src)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, by rank, on every worker."""
        return [
            send_tree(value, sends=self.rank == src, broadcast=partial(self.broadcast, src=src))
            for src in range(self.size)
        ]

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self.all_reduce(torch.zeros(1))  # On the CPU: NCCL's own barrier would have to guess a device.

    @contextmanager
    def _peers(self) -> Iterator[None]:
        with self._activity.waiting(), losses_named():
            yield


_LOSS = (
    "connection",
    "closed by peer",
    "socket",
    "broken pipe",
    "timed out",
    "timeout",
    "remote process",
    "ncclremoteerror",
    "ncclsystemerror",
    "network error",
    "no route to host",
    "unreachable",
)
"""Parts of what gloo, NCCL and their stores say when a worker is gone."""


def means_lost_worker(error: RuntimeError) -> bool:
    """Whether an error of torch.distributed says that a peer is gone, and not that this call was wrong.

    Both are RuntimeErrors: a connection that closes, and two ranks on one GPU, a GPU out of memory, tensors of
    different sizes. Beginning again helps only against the first.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    text = str(error).lower()
    return any(part in text for part in _LOSS)


@contextmanager
def losses_named() -> Iterator[None]:
    """Turn the errors by which torch.distributed says that a worker is gone into `WorkerLostError`."""
    try:
        yield
    except RuntimeError as error:
        if not means_lost_worker(error):
            raise
        raise WorkerLostError(str(error)) from error


@contextmanager
def joined(
    backend: str, store: Store | None = None, *, rank: int = -1, size: int = -1, activity: Activity | None = None
) -> Iterator[ProcessGroup]:
    """Join the workers that meet at a store; without one, those that the environment names as torchrun does.

    Args:
        backend: See `devices.backend_for`.
    """
    if dist.is_initialized():  # By the program that called us.
        yield ProcessGroup(activity)
        return
    meeting: dict[str, Any] = {"store": store, "rank": rank, "world_size": size} if store else _of_torchrun(os.environ)
    activity = activity or Activity()
    with activity.waiting(), losses_named():
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT, **meeting)
    try:
        yield ProcessGroup(activity)
    finally:
        dist.destroy_process_group()


def _of_torchrun(environment: Mapping[str, str]) -> dict[str, Any]:
    """Where workers that torchrun started find each other, if not as usual.

    torch's elastic launcher keeps one store for all attempts; addresses of workers that are gone still stand in it.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    store = TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), timeout=COLLECTIVE_TIMEOUT)
    attempt = PrefixStore(f"sightline-{environment['TORCHELASTIC_RESTART_COUNT']}", store)
    return {"store": attempt, "rank": int(environment["RANK"]), "world_size": int(environment["WORLD_SIZE"])}
