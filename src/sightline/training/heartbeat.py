"""What a worker's heartbeat says, and when it shows that the worker hangs.

The heartbeat comes from a thread of its own, so that it goes on during long computations; therefore it must say how
long ago the main thread last moved on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "data", "step", "evaluation", "checkpoint"]

_STEPS = 20
"""A step may take this many times as long as the slowest one so far."""
_UNTIMED = 20
"""What has no usual duration, such as loading or an evaluation's last sum, may take this many heartbeat timeouts."""


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life.

    Attributes:
        step: The step that the main thread is at.
        idle_s: Seconds since the main thread last moved on.
        waiting: Whether it waits for other workers, whose fault a delay is then.
        slowest_step_s: The longest that the main thread has worked in a step without waiting for others; 0 before the
            first step has ended.
        memory: Peak memory by kind, in MB.
        on_gpu: Whether it computes on a GPU, where it waits for others in whatever reads a result, unnoticed.
    """

    step: int
    phase: Phase
    idle_s: float
    waiting: bool
    slowest_step_s: float
    memory: dict[str, float]
    on_gpu: bool = False

    def hangs(self, timeout_s: float) -> bool:
        """Whether the main thread has stopped moving, by the time in which a heartbeat must come."""
        if self.waiting:
            return False
        if self.phase == "step" and self.slowest_step_s and not self.on_gpu:
            return self.idle_s > max(timeout_s, _STEPS * self.slowest_step_s)
        return self.idle_s > _UNTIMED * timeout_s


class Activity:
    """What the main thread of a worker is doing; written by it, read by the thread of the heartbeat."""

    def __init__(self) -> None:
        self.step = 0
        self.phase: Phase = "start"
        self.slowest_step_s = 0.0
        self.on_gpu = False
        self._waiting = 0
        self._longest = 0.0
        self._moved = time.monotonic()

    def enter(self, phase: Phase, *, step: int | None = None) -> None:
        """The main thread begins something, or goes on with it."""
        self.move()
        if self.phase == "step" and phase != "step":
            self.slowest_step_s = max(self.slowest_step_s, self._longest)
        self.phase, self._longest = phase, 0.0
        self.step = self.step if step is None else step

    def move(self) -> None:
        """The main thread has done a part of what it is doing."""
        now = time.monotonic()
        self._longest, self._moved = max(self._longest, now - self._moved), now

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this lasts, the main thread waits for other workers."""
        self.move()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            self._moved = time.monotonic()

    def beat(self, memory: dict[str, float]) -> Heartbeat:
        """The state as a message."""
        idle = time.monotonic() - self._moved
        return Heartbeat(self.step, self.phase, idle, self._waiting > 0, self.slowest_step_s, memory, self.on_gpu)
