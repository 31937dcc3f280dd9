"""The one directory that holds all state of a project."""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import ConfigError, StorageError

MODEL = "model"
"""In a run's directory: its best model."""
BEST = "best"
"""In a run's directory: the best weights so far, as a checkpoint."""
CHECKPOINTS = "checkpoints"
"""In a run's directory: its newest checkpoints."""
LOCK = ".lock"
"""In a run's directory: locked by the process that trains it, for as long as that lives."""

REFUSALS = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}
"""Errors of a file system that is read-only, of another user, or full."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where things lie; nothing is created before it is written."""

    root: Path

    @classmethod
    def find(cls, root: str | Path | None = None) -> "Workspace":
        """The given directory, else SIGHTLINE_HOME, else ./sightline-workspace."""
        return cls(Path(root or os.environ.get("SIGHTLINE_HOME") or "sightline-workspace").expanduser())

    def make(self) -> "Workspace":
        """Create the directory, for its owner alone, if there is none; one that exists keeps its mode.

        Raises:
            StorageError: The disk refused.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the workspace {str(self.root)!r}: {error}. Give another directory with --workspace or "
                "SIGHTLINE_HOME"
            ) from error
        return self

    @property
    def datasets(self) -> Path:
        """The directory of datasets."""
        return self.root / "datasets"

    @property
    def runs(self) -> Path:
        """The directory of training runs."""
        return self.root / "runs"

    @property
    def bundles(self) -> Path:
        """Copies of models from registries and buckets, each under its hash."""
        return self.root / "models"

    @property
    def compiled(self) -> Path:
        """Compiled forms of models, each under the hash of its bundle; each user has a directory of their own."""
        return self.root / "compiled" / f"user-{os.getuid()}"

    @property
    def detections(self) -> Path:
        """The directory of detection jobs: their tables, or where these are."""
        return self.root / "detections"

    def dataset_location(self, reference: str) -> str:
        """Where a dataset lies: a name means a directory of the workspace; a path or URL means itself."""
        if is_location(reference):
            return reference
        return str(self.datasets / check_name(reference))


def is_locked(run: Path) -> bool:
    """Whether a process is training in the directory of a run."""
    try:
        with open(run / LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_writable(place: Path) -> None:
    """Raise, before any work, if a place of the workspace cannot be written to or made.

    Raises:
        StorageError: It is read-only, or belongs to another user.
    """
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    with writing_to(existing):
        if not os.access(existing, os.W_OK):
            raise OSError(errno.EACCES, "read-only, or of another user", str(existing))


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Turn a disk's refusal to write below a place of the workspace into an error that says what to do.

    Raises:
        StorageError: The place is read-only, belongs to another user, or is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise StorageError(
            f"cannot write to {str(error.filename or place)!r}: {error.strerror}. Make it writable, or give another "
            "place with --workspace (or SIGHTLINE_HOME)"
        ) from error


def is_location(reference: str) -> bool:
    """Whether a reference is a path or URL rather than a name."""
    return "/" in reference or os.sep in reference or reference in (".", "..")


def check_name(name: str) -> str:
    """Return the name, or raise if it could not be a directory everywhere."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name {name!r} is not usable: take up to 100 letters, digits, '.', '_' or '-', beginning with a letter "
            "or digit (a path must contain a '/')"
        )
    return name
