"""What connects a worker to its run, wherever and by whomever it was started."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sightline.training.attempt import AttemptFence
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory, CheckpointStore
from sightline.training.heartbeat import Activity
from sightline.training.messages import Message, Note, Origin
from sightline.workspace import BEST, CHECKPOINTS


class NoStore:
    """For workers other than rank 0, which keeps the run's state for all."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Never called."""
        raise AssertionError("only rank 0 saves")

    def load_latest(self) -> Checkpoint | None:
        """Rank 0 hands it over."""
        return None


@dataclass
class WorkerContext:
    """What connects a worker to its run.

    Attributes:
        origin: Which worker this is.
        checkpoints: Where rank 0 saves the run's state.
        best: Where it keeps the best model so far.
        send: Takes messages to the driver; only rank 0 has one, for it speaks for all.
        should_stop: Polled after every step.
        activity: What the worker is doing, for its heartbeat.
    """

    origin: Origin
    checkpoints: CheckpointStore = field(default_factory=NoStore)
    best: CheckpointStore = field(default_factory=NoStore)
    send: Callable[[Message], None] = lambda message: None
    should_stop: Callable[[], bool] = lambda: False
    activity: Activity = field(default_factory=Activity)

    def note(self, text: str) -> None:
        """Report something that users should know."""
        self.send(Note(self.origin, text))


def run_context(
    directory: Path, attempt: int, *, send: Callable[[Message], None], should_stop: Callable[[], bool]
) -> WorkerContext:
    """The context of rank 0 where the run's directory can be reached."""
    fence = AttemptFence(directory)
    return WorkerContext(
        Origin(directory.name, attempt),
        CheckpointDirectory(directory / CHECKPOINTS, fence=fence, attempt=attempt),
        CheckpointDirectory(directory / BEST, keep=1, fence=fence, attempt=attempt),
        send,
        should_stop,
    )
