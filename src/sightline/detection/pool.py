"""Who works on chunks: the runner hands tasks out and hears what became of them."""

import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sightline.detection.item import Item
from sightline.detection.plan import Chunk
from sightline.detection.worker import Worker

IN_FLIGHT = 2
"""Tasks of a worker: one goes through the network, of the next the first images are decoded."""


@dataclass(frozen=True)
class Task:
    """Some images of a chunk.

    Attributes:
        attempt: 1 for a whole chunk; more for parts of one that somebody died over, which are worked on alone.
    """

    chunk: Chunk
    items: tuple[Item, ...]
    attempt: int = 1

    @property
    def alone(self) -> bool:
        """Whether a worker that does it must have nothing else to do, so that it is known what it died of."""
        return self.attempt > 1


@dataclass(frozen=True)
class Done:
    """Rows for all images of a task."""

    task: Task
    rows: pa.Table


@dataclass(frozen=True)
class Died:
    """The worker of a task is gone; the task was all it had to do, or one of two."""

    task: Task
    why: str


class Pool(Protocol):
    """Some workers."""

    @property
    def size(self) -> int:
        """How many there should be."""
        ...

    @property
    def alive(self) -> int:
        """How many are at work or ready."""
        ...

    def takes(self, *, alone: bool = False) -> bool:
        """Whether a task can be handed out now."""
        ...

    def submit(self, task: Task) -> None:
        """Hand a task out."""
        ...

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """What has happened, after waiting for it for a while.

        Raises:
            SightlineError: A worker cannot work at all.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class InProcess:
    """One worker in this process. What kills it kills the run; a later run then sees to that chunk in a child."""

    size = alive = 1

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._threads = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="sightline-detect")
        self._outcomes: queue.SimpleQueue[Done | BaseException] = queue.SimpleQueue()
        self._busy = 0

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return self._busy < (1 if alone else IN_FLIGHT)

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        self._busy += 1
        self._threads.submit(self._run, task)

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self._busy -= 1
        if isinstance(outcome, BaseException):
            raise outcome
        return [outcome]

    def close(self) -> None:
        """See `Pool.close`."""
        self._threads.shutdown(cancel_futures=True, wait=False)
        self._worker.close()

    def _run(self, task: Task) -> None:
        try:
            self._outcomes.put(Done(task, self._worker.process(task.chunk.name, task.items)))
        except BaseException as error:  # In a thread: whoever waits decides.
            self._outcomes.put(error)
