"""Bundles from elsewhere, copied once into the workspace: a directory for each, named by its hash."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sightline.data.atomic import partial_directory
from sightline.data.manifest import MANIFEST, identity, parse_manifest
from sightline.data.storage import Folder
from sightline.errors import DamagedError, NotFoundError, StorageError
from sightline.models.bundle import Bundle, open_bundle


class Source(Protocol):
    """Where a bundle comes from."""

    @property
    def place(self) -> str:
        """How it is named in messages, without credentials."""
        ...

    def fetch(self, name: str, to: Path) -> None:
        """Copy one of its files to a path.

        Raises:
            NotFoundError: There is no such file.
        """
        ...


@dataclass(frozen=True)
class FolderSource:
    """A bundle in a bucket."""

    folder: Folder

    @property
    def place(self) -> str:
        """Its URL."""
        return self.folder.location

    def fetch(self, name: str, to: Path) -> None:
        """Copy one of its files."""
        if not self.folder.is_file(name):
            raise NotFoundError(f"there is no model at {self.place!r}: it has no {name!r}")
        try:
            with self.folder.open_file(name) as stream, open(to, "wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
        except OSError as error:
            raise StorageError(f"cannot read {name!r} of {self.place!r}: {error}") from error


def bring_bundle(source: Source, cache: Path, *, expected: str | None = None) -> Bundle:
    """The bundle of a source, from the cache if it is there already.

    Only what its manifest lists is copied, and nothing is opened before all of it was seen to be as it was written.

    Args:
        expected: The hash that it must have.

    Raises:
        DamagedError: It is not whole, or another one than expected.
    """
    try:
        with partial_directory(cache / "download") as partial:
            source.fetch(MANIFEST, partial / MANIFEST)
            manifest = (partial / MANIFEST).read_bytes()
            files, found = parse_manifest(manifest, source.place), identity(manifest)
            if expected not in (None, found):
                raise DamagedError(
                    f"{source.place!r} holds the model {found[:12]}, not {str(expected)[:12]} which was registered: "
                    "somebody changed it"
                )
            kept = _kept(cache / found)
            if kept:
                return kept
            for name in files:
                source.fetch(name, partial / name)
            open_bundle(partial)
            return _keep(partial, cache / found)
    except OSError as error:
        raise StorageError(f"cannot keep a model in {str(cache)!r}: {error}") from error


def _kept(place: Path) -> Bundle | None:
    """The copy in the cache; one that is damaged, or not what its name says, is thrown away."""
    try:
        found = open_bundle(place)
    except (NotFoundError, DamagedError):
        found = None
    if found and found.hash == place.name:
        return found
    shutil.rmtree(place, ignore_errors=True)
    return None


def _keep(partial: Path, place: Path) -> Bundle:
    try:
        partial.rename(place)
    except OSError:
        if not place.is_dir():  # Else another process was quicker with the same bundle.
            raise
    return open_bundle(place)
