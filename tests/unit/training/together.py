"""Several workers in one process, a thread each, for tests that need no other machinery."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Together:
    """A worker among threads. Sums are taken in the order of ranks, so that they are the same on all."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, desk: list[Any]) -> None:
        self.rank, self.size = rank, size
        self._barrier, self._desk = barrier, desk

    def gather(self, value: Any) -> list[Any]:
        self._desk[self.rank] = value
        self._barrier.wait()
        values = list(self._desk)
        self._barrier.wait()
        return values

    def all_reduce(self, tensor: Tensor) -> Tensor:
        values = self.gather(tensor.detach().clone())
        with torch.no_grad():
            return tensor.copy_(sum(values[1:], start=values[0]))

    def broadcast(self, tensor: Tensor) -> Tensor:
        with torch.no_grad():
            return tensor.copy_(self.gather(tensor.detach().clone())[0])

    def barrier(self) -> None:
        self._barrier.wait()


def run_together(size: int, work: Callable[[Together], Result]) -> list[Result]:
    """What each of so many workers returns, by rank; a worker that fails fails all."""
    barrier, desk = threading.Barrier(size, timeout=60), [None] * size

    def guarded(rank: int) -> Result:
        torch.set_num_threads(1)  # It is a setting of the thread; sums depend on it to the last bit.
        try:
            return work(Together(rank, size, barrier, desk))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        tasks = [pool.submit(guarded, rank) for rank in range(size)]
    failures = [task.exception() for task in tasks]
    for failure in sorted(filter(None, failures), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise failure  # The first that is not merely the consequence of another's.
    return [task.result() for task in tasks]
