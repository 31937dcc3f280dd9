"""Checkpoints: a directory that is complete or absent, checked by its manifest, without pickle.

step-00000120/
weights.safetensors     the model
ema.safetensors         its moving average, if there is one
optimizer.pt            tensors and numbers only, read with weights_only
progress.json           the format version; epoch, position, step, best score, history
seen.json               images of the epoch so far, if the run is verified
manifest.json           size and SHA-256 of each file; written last
"""

import io
import json
import os
import pickle
import secrets
import shutil
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from sightline.data.disk import make_directory, may_pass, read_patiently, says_it_may_pass, sync
from sightline.data.manifest import MANIFEST, parse_manifest, verify_manifest, write_manifest
from sightline.errors import DamagedError, FormatError, StorageError
from sightline.models.weights import Weights, plain_weights, refuse_not_finite
from sightline.retry import STORAGE_RETRY
from sightline.training.attempt import AttemptFence

_FORMAT = 1
_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    Attributes:
        seen: The images that all workers have seen of the epoch so far, where that is verified.
    """

    weights: Weights
    ema: Weights | None
    optimizer: dict[str, Any]
    progress: dict[str, Any]
    seen: list[str] = field(default_factory=list)


class CheckpointStore(Protocol):
    """Where a run's state is kept."""

    def save(self, checkpoint: Checkpoint) -> object:
        """Keep a checkpoint; when this returns it is never lost."""
        ...

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none."""
        ...


class CheckpointDirectory:
    """The checkpoints of one run, in a directory.

    Args:
        keep: How many are kept.
        fence: Refuses the saves of older attempts; None takes all.
        attempt: Whose saves these are.
    """

    def __init__(self, path: Path, *, keep: int = 2, fence: AttemptFence | None = None, attempt: int = 0) -> None:
        self.path = path
        self._keep, self._fence, self._attempt = keep, fence, attempt
        self._damaged: set[Path] = set()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint; when this returns it survives a crash of the machine.

        A disk that fails for a while is tried again, each time with all files anew.

        Raises:
            NotFiniteError: The weights are not finite; nothing is written.
            StorageError: The disk refused; earlier checkpoints are untouched.
            StaleAttemptError: A newer attempt has begun; nothing is changed.
        """
        refuse_not_finite(checkpoint.weights)
        refuse_not_finite(checkpoint.ema or {})
        what = f"saving a checkpoint in {str(self.path)!r}"
        try:
            final = STORAGE_RETRY.call(lambda: self._save(checkpoint), what=what, passes=_may_pass)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise StorageError(f"cannot save a checkpoint in {str(self.path)!r}: {error}") from error
        with suppress(StorageError):  # The checkpoint is safe; what could not be removed is removed after the next.
            self._remove_others(final)
        return final

    def _fenced(self) -> AbstractContextManager[None]:
        return self._fence.held(self._attempt) if self._fence else nullcontext()

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None if there is none.

        Raises:
            FormatError: It was written by a later version.
            StorageError: The disk cannot be read, so it is unknown which checkpoints are whole.
        """
        for place in self._newest_first():
            try:
                return load_checkpoint(place)
            except DamagedError:
                self._damaged.add(place)  # Torn by a crash of the disk: the one before it is whole.
        return None

    def latest_progress(self) -> dict[str, Any] | None:
        """What the newest checkpoint says of the run's progress, without verifying it; None if there is none."""
        for place in self._newest_first():
            try:
                return read_patiently(partial(_read_progress, place), what=f"read {str(place)!r}")
            except (OSError, ValueError):
                continue  # Torn by a crash, or replaced by a newer one meanwhile.
        return None

    def _save(self, checkpoint: Checkpoint) -> Path:
        make_directory(self.path)
        self._remove_unfinished()
        final = self._free_place(checkpoint.progress["step"])
        unfinished = self._hidden(final)
        try:
            unfinished.mkdir()
            _write_files(unfinished, checkpoint)
            with self._fenced():
                unfinished.rename(final)
            sync(self.path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return final

    def _hidden(self, place: Path) -> Path:
        """A name that no other attempt or process uses, for a directory that is incomplete or no longer wanted."""
        return self.path / f".{place.name}.{self._attempt}.{secrets.token_hex(4)}.tmp"

    def _names(self) -> list[str]:
        """All names in the directory. Not by `Path.glob`, which takes a disk that cannot be read for an empty one."""
        try:
            return os.listdir(self.path)  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _newest_first(self) -> list[Path]:
        names = read_patiently(self._names, what=f"read {str(self.path)!r}")
        return [self.path / name for name in sorted(names, reverse=True) if name.startswith("step-")]

    def _free_place(self, step: int) -> Path:
        """A step may be saved twice, before and after it is scored; what was saved first stays until that is done."""
        name, taken = f"step-{step:08d}", set(self._names())
        names = (f"{name}.{times}" if times else name for times in count())
        return self.path / next(free for free in names if free not in taken)

    def _remove_others(self, saved: Path) -> None:
        """Keep the newest whole ones up to the one just saved.

        Whatever is newer is of no use: had it been whole, the run would have gone on from there.
        """
        unwanted = []
        with self._fenced():  # Only renames: whoever waits for the fence must not wait for a disk.
            places = self._newest_first()
            whole = [place for place in places if place <= saved and place not in self._damaged]
            for place in places:
                if place not in whole[: self._keep]:
                    unwanted.append(self._hidden(place))
                    with suppress(OSError):
                        place.rename(unwanted[-1])
                    self._damaged.discard(place)
        for place in unwanted:
            shutil.rmtree(place, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        with self._fenced():  # What lies there now belongs to attempts that have ended.
            names = self._names()
        for name in names:
            if name.startswith(".step-") and name.endswith(".tmp"):
                shutil.rmtree(self.path / name, ignore_errors=True)


def load_checkpoint(place: Path) -> Checkpoint:
    """Read a checkpoint whose every file is as it was written.

    Raises:
        DamagedError: A file is missing, torn or changed.
        StorageError: The disk cannot be read, which says nothing about the checkpoint.
    """
    verify_manifest(place)
    try:
        return read_patiently(partial(_read_files, place), what=f"read {str(place)!r}")
    except (OSError, SafetensorError) as error:  # A run that is training has removed it meanwhile.
        raise DamagedError(f"{str(place)!r} cannot be read: {error}") from error


def _read_files(place: Path) -> Checkpoint:
    """Every file is read as bytes: what libraries say of a disk that fails does not tell it from a damaged file."""
    files = parse_manifest((place / MANIFEST).read_bytes(), str(place))
    ema, seen = "ema.safetensors", "seen.json"
    return Checkpoint(
        weights=load((place / "weights.safetensors").read_bytes()),
        ema=load((place / ema).read_bytes()) if ema in files else None,
        optimizer=_load_tensors(place / "optimizer.pt"),
        progress=_read_progress(place),
        seen=json.loads((place / seen).read_text("utf-8")) if seen in files else [],
    )


def _read_progress(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / _PROGRESS).read_text("utf-8"))
    version = found.pop("format", 1)
    if version > _FORMAT:
        raise FormatError(
            f"checkpoint {str(place)!r} has format version {str(version)[:20]}, and this Sightline reads {_FORMAT}: "
            "install the version of Sightline that wrote it, or start the run anew with --fresh"
        )
    return found


def _load_tensors(file: Path) -> dict[str, Any]:
    """Tensors and numbers; anything else in the file is refused, not run."""
    content = io.BytesIO(file.read_bytes())
    try:
        return torch.load(content, weights_only=True, map_location="cpu")  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DamagedError(f"{str(file)!r} holds more than tensors and numbers: {str(error)[:200]}") from None


def _may_pass(error: BaseException) -> bool:
    return may_pass(error) or (isinstance(error, SafetensorError) and says_it_may_pass(str(error)))


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    save_file(plain_weights(checkpoint.weights), directory / "weights.safetensors")
    if checkpoint.ema is not None:
        save_file(plain_weights(checkpoint.ema), directory / "ema.safetensors")
    written = io.BytesIO()  # Not straight to the disk: when that is full, torch's own message does not say so.
    torch.save(checkpoint.optimizer, written)
    (directory / "optimizer.pt").write_bytes(written.getbuffer())
    (directory / _PROGRESS).write_text(json.dumps({"format": _FORMAT, **checkpoint.progress}), "utf-8")
    if checkpoint.seen:
        (directory / "seen.json").write_text(json.dumps(checkpoint.seen), "utf-8")
    write_manifest(directory)
