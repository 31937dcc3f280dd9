"""Who works on chunks: the runner hands tasks out and hears what became of them."""

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import pyarrow as pa

from sightline.detection.item import Item
from sightline.detection.plan import Chunk
from sightline.detection.worker import Worker
from sightline.errors import WorkerError

START_S = 60.0
"""What a worker in another process may take to start, however short a stall is: it imports much on a busy machine."""

IN_FLIGHT = 2
"""Tasks of a worker: one goes through the network, of the next the first images are decoded."""


@dataclass(frozen=True)
class Task:
    """Some images of a chunk.

    Attributes:
        attempt: 1 for a whole chunk; more for parts of one that somebody died over, which are worked on alone.
        lost: How often its worker was lost with its node, or to a shortage of memory there.
    """

    chunk: Chunk
    items: tuple[Item, ...]
    attempt: int = 1
    lost: int = 0

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
    """The worker of a task is gone; the task was all it had to do, or one of two.

    Attributes:
        blames_node: Whether its machine was lost or short of memory, which says nothing about the images.
    """

    task: Task
    why: str
    blames_node: bool = False


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


class StallTimer:
    """For how long nothing has moved.

    Only time that was spent waiting counts: a run that is paused itself, or is busy with the target, has seen nothing.
    """

    def __init__(self) -> None:
        self._progress: object = None
        self._quiet_s = 0.0

    def restart(self) -> None:
        """Something new is waited for."""
        self._quiet_s = 0.0

    def wait(self, progress: object, waited_s: float) -> float:
        """Seconds without progress, after waiting for it once more."""
        self._quiet_s = self._quiet_s + waited_s if progress == self._progress else 0.0
        self._progress = progress
        return self._quiet_s


class WatchClock:
    """Seconds for which a run has watched its workers: between two looks a second at the most.

    What workers do while the run is paused itself, or is busy with the target, it sees only at the next look.

    Attributes:
        now: At the last look.
    """

    _LONGEST_STEP_S = 1.0

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._looked, self.now = clock, clock(), 0.0

    def look(self) -> None:
        """The run sees how its workers are."""
        looked = self._clock()
        self.now += min(looked - self._looked, self._LONGEST_STEP_S)
        self._looked = looked


class InProcess:
    """One worker in this process. What kills it kills the run; a later run then sees to that chunk in a child.

    Args:
        stall_s: How long no image may be finished.
    """

    size = alive = 1

    def __init__(self, worker: Worker, *, stall_s: float) -> None:
        self._worker, self._stall_s, self._timer = worker, stall_s, StallTimer()
        self._threads = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="sightline-detect")
        self._outcomes: queue.SimpleQueue[Done | BaseException] = queue.SimpleQueue()
        self._tasks: list[Task] = []

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return len(self._tasks) < (1 if alone else IN_FLIGHT)

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        if not self._tasks:
            self._timer.restart()
        self._tasks.append(task)
        self._threads.submit(self._run, task)

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            if self._tasks and self._timer.wait(self._worker.done, timeout_s) > self._stall_s:
                raise WorkerError(self._how_it_stalled()) from None
            return []
        if isinstance(outcome, BaseException):
            raise outcome
        self._tasks.remove(outcome.task)
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

    def _how_it_stalled(self) -> str:
        """A thread cannot be ended; a process can."""
        chunks = " and ".join(f"chunk {task.chunk.name}" for task in self._tasks)
        return (
            f"no image was finished in {self._stall_s:g} s ({chunks} under way): run the same command again; "
            "these images are then tried in a process of their own, which can be ended. If they only take long, "
            "allow them more with --set detect.stall_s=SECONDS"
        )
