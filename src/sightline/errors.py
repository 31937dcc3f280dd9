"""Everything Sightline raises on purpose.

SightlineError
├── ConfigError            a setting that is unknown or has a wrong value
├── NotFoundError          a dataset, file or folder that is not there
├── ExistsError            something is there already and would be overwritten
├── FormatError            annotations or a model in a form that is not what it should be
├── StorageError           a disk, bucket or database that refused
│   └── SourceError        a source of images that cannot be read at the moment
├── WorkerError            workers that cannot start, get nowhere, or have a machine that fails them
│   └── BrokenModelError   a model that fails over any image in this process, and may work in another
├── MissingExtraError      an optional package is not installed
├── TooManyRejectedError   more input was unusable than the caller allowed
├── DamagedError           stored bytes differ from what was written
├── TrainingError          a run that cannot go on: a loss that is not finite
│   └── StaleAttemptError  a worker of an attempt that another one has replaced
├── TrackingError          an MLflow server or database that does not answer
├── GateError              a model that is worse than the one it would replace
└── ImageError             one image or one annotation that cannot be used; becomes a row in `rejects`

`Stopped` is raised where a run was asked to stop; it is no error.

Each message says what was wrong, with the value, and what to do next.
"""

from typing import Any


class Stopped(Exception):
    """A run was asked to stop; what it has done is saved, and the same command goes on with it."""


class SightlineError(Exception):
    """Base of all errors that a user can do something about."""

    exit_code = 3


class ConfigError(SightlineError):
    """A setting that is unknown or has a wrong value."""

    exit_code = 2


class NotFoundError(SightlineError):
    """A dataset, file or folder that is not there."""


class ExistsError(SightlineError):
    """Something is there already and would be overwritten."""


class FormatError(SightlineError):
    """Annotations that cannot be read as the format they claim to be, or a model that is no bundle."""


class StorageError(SightlineError):
    """A disk, bucket or database that refused."""


class SourceError(StorageError):
    """A source of images that cannot be read at the moment: it says nothing about the image that was asked for."""


class WorkerError(SightlineError):
    """Workers that cannot start, get nowhere, or have a machine that fails them."""


class BrokenModelError(WorkerError):
    """A model that fails over any image in this process: after some errors of a GPU it takes another one."""


class DamagedError(SightlineError):
    """Stored bytes differ from what was written."""


class TrainingError(SightlineError):
    """A run that cannot go on."""


class StaleAttemptError(TrainingError):
    """A worker of an attempt that another one has replaced; what it has to say or save is refused."""


class TrackingError(SightlineError):
    """An MLflow server or database that does not answer."""


class GateError(SightlineError):
    """A model that is worse than the one it would replace."""

    exit_code = 5


class TooManyRejectedError(SightlineError):
    """More input was unusable than the caller allowed."""

    exit_code = 4


class MissingExtraError(SightlineError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed: pip install 'sightline[{extra}]'")
        self._arguments = (package, extra)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


class ImageError(SightlineError):
    """One image or annotation that cannot be used, or a list entry that leads to none: nothing else is to blame.

    Args:
        reason: A short, stable phrase that can be counted, such as "truncated image".
        detail: What exactly was seen, with file, line or value.
        stage: Where it was noticed. "path": its name, or the kind of entry, rules it out; "read": it is not there or
            cannot be opened, which may be mended, so the next run of `detect` tries it again; "decode": its bytes are
            no image that is read; "detect": the model fails, or a worker dies, over it alone; "annotation": what is
            said of it cannot be used.
    """

    def __init__(self, reason: str, detail: str = "", *, stage: str = "decode") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.stage = reason, detail, stage

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_image_error, (type(self), self.reason, self.detail, self.stage)


def _rebuild_image_error(kind: type[ImageError], reason: str, detail: str, stage: str) -> ImageError:
    return kind(reason, detail, stage=stage)
