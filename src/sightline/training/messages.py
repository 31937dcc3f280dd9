"""What the workers of a run report to its driver: one type for each event.

A worker builds a message, a launcher transports it as it is, and `RunMonitor.handle` is where it takes effect. Each
names the run, the attempt and the rank that it comes from: a message of an older attempt has no effect.
"""

from dataclasses import dataclass, field

from sightline.errors import SightlineError
from sightline.training.heartbeat import Heartbeat

TRAINING = ("data", "forward_backward", "all_reduce", "optimizer")
"""The parts of a step, in which the time of training goes."""
PARTS = (*TRAINING, "evaluation", "checkpoint")
"""Where the time of a run goes."""
DRIVER = -1
"""The rank of messages that the driver itself adds."""


@dataclass
class RunProgress:
    """Where a run stands; what a checkpoint says in JSON.

    Attributes:
        best_classes: Figures of single classes in the best epoch, named `FIGURE/INDEX OF THE CLASS`.
        history: Scores of every evaluation, without those of single classes.
        precision: The numbers in which the workers compute, as they have agreed.
        workers: How many there are.
        threads: Of each worker; sums depend on them to the last bit.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    best_score: float = -1.0
    best_epoch: int = 0
    finished: bool = False
    best_classes: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    precision: str = ""
    workers: int = 0
    threads: int = 0

    def ended(self, epochs: int) -> bool:
        """Whether nothing is left to do."""
        return self.finished or self.epoch >= epochs


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run that came to its end, as a worker knows it."""

    progress: RunProgress
    seconds: dict[str, float]
    resumed_at_step: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message comes from.

    Attributes:
        run: Name of the run.
        attempt: Number of the attempt; every start of workers is a new one.
        rank: Of the worker.
    """

    run: str
    attempt: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """Anything that a worker reports."""

    origin: Origin


@dataclass(frozen=True, slots=True)
class Resumed(Message):
    """The workers have joined and loaded the run's state; training begins from there.

    Attributes:
        seconds: Where the time of this attempt went so far.
    """

    progress: RunProgress
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepCompleted(Message):
    """An optimizer step.

    Attributes:
        num_steps: Steps of the whole run.
        losses: The loss and its terms.
        images: Images of all workers in the step.
        seconds: Where the time of this attempt went so far.
    """

    progress: RunProgress
    num_steps: int
    losses: dict[str, float]
    images: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """The scores of an epoch."""

    epoch: int
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Message):
    """A checkpoint that will not be lost."""


@dataclass(frozen=True, slots=True)
class Note(Message):
    """Something that users should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Alive(Message):
    """A sign of life."""

    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Finished(Message):
    """A worker came to the end of the run; rank 0 brings the outcome."""

    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Interrupted(Message):
    """A worker has stopped because it was asked to; the run is saved."""


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """A worker raised an error that another attempt would raise too."""

    error: SightlineError


@dataclass(frozen=True, slots=True)
class Crashed(Message):
    """A worker raised something unexpected.

    Attributes:
        trace: The traceback, as text.
    """

    trace: str


@dataclass(frozen=True, slots=True)
class PeerLost(Message):
    """A worker lost contact with its peers and has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exited(Message):
    """The process of a worker has ended; from the launcher.

    Attributes:
        how: In words, with a leading space, such as " to SIGKILL"; empty where there is nothing to say.
    """

    how: str = ""


@dataclass(frozen=True, slots=True)
class WorkersAlive(Message):
    """How many workers are alive changed; from the monitor."""

    alive: int
    wanted: int


LAST_WORDS = (Finished, Interrupted, Failed, Crashed, PeerLost, Exited)
"""After one of these, a worker reports nothing more but its exit."""
