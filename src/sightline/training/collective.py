"""What a worker knows of the others: its rank, their number, and how to add things up."""

from typing import Any, Protocol

from torch import Tensor

from sightline.training.wire import send_tree


class WorkerLostError(Exception):
    """Another worker is gone, or cannot be reached: what this one was doing cannot be ended."""


class Collective(Protocol):
    """The other workers, as a worker sees them. Every rank makes every call, in the same order."""

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many workers there are."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of the tensor over all workers, in place."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, in place."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, by rank, on every worker: plain data and arrays, see `wire`."""
        ...

    def barrier(self) -> None:
        """Wait until every worker is here."""
        ...


class SingleProcess:
    """The one worker of a run in a single process."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """This worker's value."""
        return [value]

    def barrier(self) -> None:
        """Nobody to wait for."""


def broadcast_tree(collective: Collective, value: Any) -> Any:
    """Rank 0's value on every worker, one array after another: no worker holds more than the value itself."""
    if collective.size == 1:
        return value
    return send_tree(value, sends=collective.rank == 0, broadcast=collective.broadcast)
