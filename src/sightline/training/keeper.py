"""The driver's picture of a run whose workers are elsewhere, drawn from what they tell."""

from typing import Any

from sightline.training.job import Outcome, Watcher
from sightline.training.loop import Progress
from sightline.training.record import RunRecord
from sightline.training.timing import PARTS, peak_memory

RESTARTS = 5
"""So often in a row workers may be started again before the run gets any further; then it ends."""


class Keeper:
    """Hears rank 0, keeps the record, and passes everything on to whoever looks on.

    Attributes:
        progress: Where the run stands, as far as is known.
        seconds: Where the time went, over all attempts.
        saves: How many checkpoints were saved: whether the run gets any further.
    """

    def __init__(self, progress: Progress, watcher: Watcher) -> None:
        self.progress, self._watcher = progress, watcher
        self.resumed_at_step = progress.step
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._before = dict(self.seconds)
        self._memory: dict[int, dict[str, float]] = {}
        self._record: RunRecord | None = None
        self._alive: tuple[int, int] | None = None
        self.saves = 0

    def keep(self, record: RunRecord) -> None:
        """Write everything into a record from now on."""
        self._record = record

    @property
    def memory(self) -> dict[str, float]:
        """The most that any worker has held, by kind of memory."""
        if not self._memory:  # The worker is in this process.
            return peak_memory()
        kinds = {kind for held in self._memory.values() for kind in held}
        return {kind: max(held.get(kind, 0.0) for held in self._memory.values()) for kind in kinds}

    def should_stop(self) -> bool:
        """Whether somebody wants the run to end."""
        return self._watcher.should_stop()

    def hear(self, kind: str, content: Any) -> None:
        """A message of rank 0."""
        assert self._record is not None
        match kind:
            case "ready":
                self._begin_attempt(*content)
            case "step":
                *step, seconds = content
                self.progress = step[0]
                self._add_seconds(seconds)
                self._record.on_step(*step)
                self._watcher.on_step(*step)
            case "scores":
                self._record.on_scores(*content)
                self._watcher.on_scores(*content)
            case "checkpoint":
                self.saves += 1
                self._record.on_checkpoint()
                self._watcher.on_checkpoint()
            case "note":
                self._watcher.on_note(content)
            case _:
                raise ValueError(f"a worker said {kind!r}, which is not known")

    def conclude(self, outcome: Outcome) -> None:
        """The run came to its end: what the last step's message could not say yet."""
        self.progress = outcome.progress
        self._add_seconds(outcome.seconds)

    def on_memory(self, rank: int, memory: dict[str, float]) -> None:
        """How much a worker has held at most."""
        self._memory[rank] = memory

    def on_workers(self, alive: int, wanted: int) -> None:
        """How many workers there are."""
        if self._alive != (alive, wanted):
            self._alive = alive, wanted
            self._watcher.on_workers(alive, wanted)

    def note(self, text: str) -> None:
        """Something that people should know."""
        self._watcher.on_note(text)

    def on_lost(self, what: str) -> None:
        """A worker is gone; all of them begin again at the last checkpoint."""
        self._watcher.on_note(f"{what} at step {self.progress.step:,}; going on from the last checkpoint")

    def _begin_attempt(self, progress: Progress, seconds: dict[str, float]) -> None:
        assert self._record is not None
        self.progress, self._before = progress, dict(self.seconds)
        self._record.go_back_to(progress)
        self._add_seconds(seconds)

    def _add_seconds(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self.seconds[name] = self._before[name] + value
