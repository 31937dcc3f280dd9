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
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sightline.data.disk import make_directory, sync
from sightline.data.manifest import verify_manifest, write_manifest
from sightline.errors import DamagedError, FormatError, StorageError
from sightline.models.weights import Weights, plain_weights, refuse_not_finite

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
    """The checkpoints of one run, in a directory."""

    def __init__(self, path: Path, *, keep: int = 2) -> None:
        self.path = path
        self._keep = keep
        self._damaged: set[Path] = set()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint; when this returns it survives a crash of the machine.

        Raises:
            NotFiniteError: The weights are not finite; nothing is written.
            StorageError: The disk refused; earlier checkpoints are untouched.
        """
        refuse_not_finite(checkpoint.weights)
        refuse_not_finite(checkpoint.ema or {})
        final = self._free_place(checkpoint.progress["step"])
        partial = self.path / f".{final.name}.{os.getpid()}.tmp"
        try:
            self._remove_partial()
            make_directory(self.path)
            partial.mkdir()
            _write_files(partial, checkpoint)
            partial.rename(final)
            sync(self.path)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StorageError(f"cannot save a checkpoint in {str(self.path)!r}: {error}") from error
        self._remove_others(final)
        return final

    def load_latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None if there is none.

        Raises:
            FormatError: It was written by a later version.
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
                return _read_progress(place)
            except (FileNotFoundError, ValueError):
                continue  # Torn by a crash, or replaced by a newer one meanwhile.
        return None

    def _newest_first(self) -> Iterator[Path]:
        yield from sorted(self.path.glob("step-*"), reverse=True)

    def _free_place(self, step: int) -> Path:
        """A step may be saved twice, before and after it is scored; what was saved first stays until that is done."""
        name = f"step-{step:08d}"
        places = (self.path / (f"{name}.{times}" if times else name) for times in count())
        return next(place for place in places if not place.exists())

    def _remove_others(self, saved: Path) -> None:
        """Keep the newest whole ones up to the one just saved.

        Whatever is newer is of no use: had it been whole, the run would have gone on from there.
        """
        whole = [place for place in self._newest_first() if place <= saved and place not in self._damaged]
        for place in self._newest_first():
            if place not in whole[: self._keep]:
                shutil.rmtree(place, ignore_errors=True)
                self._damaged.discard(place)

    def _remove_partial(self) -> None:
        for place in self.path.glob(".step-*.tmp"):
            shutil.rmtree(place, ignore_errors=True)


def load_checkpoint(place: Path) -> Checkpoint:
    """Read a checkpoint whose every file is as it was written.

    Raises:
        DamagedError: A file is missing, torn or changed.
    """
    verify_manifest(place)
    ema, seen = place / "ema.safetensors", place / "seen.json"
    try:
        return Checkpoint(
            weights=load_file(place / "weights.safetensors"),
            ema=load_file(ema) if ema.exists() else None,
            optimizer=_load_tensors(place / "optimizer.pt"),
            progress=_read_progress(place),
            seen=json.loads(seen.read_text("utf-8")) if seen.exists() else [],
        )
    except (OSError, SafetensorError) as error:  # A run that is training has removed it meanwhile.
        raise DamagedError(f"{str(place)!r} cannot be read: {error}") from error


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
    try:
        return torch.load(file, weights_only=True, map_location="cpu")  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DamagedError(f"{str(file)!r} holds more than tensors and numbers: {str(error)[:200]}") from None


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
