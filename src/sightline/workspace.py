"""The one directory that holds all state of a project."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import ConfigError, StorageError

MODEL = "model"
"""In a run's directory: its best model."""

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
