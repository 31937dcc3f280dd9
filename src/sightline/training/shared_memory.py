"""Small sums through memory that the workers of one machine share.

BatchNorm over workers sends two messages of a few kilobytes a layer, and each has to arrive before the next layer can
begin. Over a socket the two ends sleep and are woken, several threads for every message, which took most of a step;
here they look at each other's memory until the number is there.

Every worker has two places, used in turn, and a counter that says which sum its place holds. Nobody can be two sums
ahead of another, so a place is never overwritten while somebody still reads it. What is read is added up in the order
of the ranks: the same bits on all workers.
"""

import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.training.collective import WorkerLostError

LARGEST = 1 << 16
"""Bytes of the largest message; larger ones are better copied by sockets, in parts."""
_LINE = 64  # Bytes of a cache line: counters that share one slow each other down.
_DIRECTORY = Path("/dev/shm")
_ORDERED = ("x86_64", "AMD64")
"""Processors on which others see writes in the order in which they were made; elsewhere counters could come first."""
_SPINS, _NAP_S, _CHECK_EVERY_S = 200, 50e-6, 1.0


class SharedMemory:
    """The common memory of workers on one machine.

    Args:
        memory: As large as `memory_size` says, zeroed at first.
        alive: Whether the worker of a rank still runs.
    """

    def __init__(self, memory: Any, *, rank: int, size: int, alive: Callable[[int], bool]) -> None:
        self._rank, self._size, self._alive = rank, size, alive
        bytes_ = np.frombuffer(memory, np.uint8)
        counters, places = np.split(bytes_, [size * _LINE])
        self._counters = counters.view(np.int64)[:: _LINE // 8]
        self._places = places.reshape(2, size, LARGEST)
        self._sums = 0

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor can be added up here."""
        return tensor.device.type == "cpu" and tensor.numel() * tensor.element_size() <= LARGEST

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the tensor over all workers, in place."""
        own = tensor.detach().contiguous().numpy().reshape(-1)
        self._sums += 1
        places = self._places[self._sums % 2][:, : own.nbytes].view(own.dtype)
        places[self._rank] = own
        self._counters[self._rank] = self._sums
        self._wait()
        tensor.detach().copy_(torch.from_numpy(places.sum(0, dtype=own.dtype)).view(tensor.shape))
        return tensor

    def _wait(self) -> None:
        """Until every worker has come to this sum: at first by looking all the time, then ever more rarely."""
        for _ in range(_SPINS):
            if self._counters.min() >= self._sums:
                return
        nap, check_at = _NAP_S, time.monotonic() + _CHECK_EVERY_S
        while self._counters.min() < self._sums:
            os.sched_yield() if nap == _NAP_S else time.sleep(nap)
            if time.monotonic() > check_at:
                self._refuse_the_dead()
                nap, check_at = 1e-3, time.monotonic() + _CHECK_EVERY_S

    def _refuse_the_dead(self) -> None:
        for rank in np.flatnonzero(self._counters < self._sums).tolist():
            if not self._alive(rank):
                raise WorkerLostError(f"worker {rank} is gone")


def memory_size(size: int) -> int:
    """Bytes that so many workers share."""
    return size * (_LINE + 2 * LARGEST)


def share_memory(rank: int, size: int, gather: Callable[[Any], list[Any]]) -> SharedMemory | None:
    """Memory common to all workers; None, on all of them, if they are not on one machine.

    Args:
        gather: Gives every worker's value, by rank, on every worker.
    """
    file = _make_file(size) if rank == 0 else None
    name, pids = gather(str(file) if file else "")[0], gather(os.getpid())
    memory = _open_file(name) if name else None
    everybody = all(gather(memory is not None))
    if file:
        file.unlink()  # It lasts as long as somebody has it open, and is gone however that ends.
    if memory is None or not everybody:
        return None
    return SharedMemory(memory, rank=rank, size=size, alive=lambda other: _runs(pids[other]))


def _make_file(size: int) -> Path | None:
    if not _DIRECTORY.is_dir() or platform.machine() not in _ORDERED:
        return None
    try:
        descriptor, name = tempfile.mkstemp(prefix="sightline-", dir=_DIRECTORY)
    except OSError:
        return None  # Workers talk over sockets then.
    try:
        # Not a sparse file: its first use would end in SIGBUS when the file system is full.
        os.posix_fallocate(descriptor, 0, memory_size(size))
    except OSError:
        Path(name).unlink()
        return None
    finally:
        os.close(descriptor)
    return Path(name)


def _open_file(name: str) -> mmap.mmap | None:
    try:
        descriptor = os.open(name, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has asked after yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
