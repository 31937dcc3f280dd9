"""What a run tells while it goes on, and the tracker that keeps nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words; KILLED was asked to stop and can go on."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its first step.

    Attributes:
        directory: Where the run lies; the tracker notes there which of its runs it is.
        settings: What decides the outcome, by dotted name; kept from the first start.
        tags: Everything that may change when a run goes on elsewhere, such as the machine.
    """

    name: str
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


EPOCHS = "sightline.epochs"
"""The tag that says how many epochs were asked for last: MLflow never changes a parameter, and runs can be extended."""


class Tracker(Protocol):
    """Who keeps the story of a run. Only `start` may fail; later troubles are told once, and training goes on."""

    @property
    def place(self) -> str:
        """Where runs are kept, without credentials; empty if nowhere."""
        ...

    def start(self, run: RunFacts) -> bool:
        """Begin a run, or go on with the one that its directory names; whether it goes on."""
        ...

    def abandon(self, directory: Path) -> None:
        """Close the run that a directory names, which is to be started anew; no process works on it."""
        ...

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Note numbers of a step; costs next to nothing."""
        ...

    def flush(self) -> None:
        """Send what was noted, without waiting for it."""
        ...

    def finish(self, status: Status, artifacts: Sequence[Path] = ()) -> None:
        """Send the rest and the files and folders, and close the run."""
        ...


class Untracked:
    """Keeps nothing."""

    place = ""

    def start(self, run: RunFacts) -> bool:
        """Nothing to begin, and nothing missing."""
        return True

    def abandon(self, directory: Path) -> None:
        """Nothing to close."""

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Nobody listens."""

    def flush(self) -> None:
        """Nothing to send."""

    def finish(self, status: Status, artifacts: Sequence[Path] = ()) -> None:
        """Nothing to close."""
