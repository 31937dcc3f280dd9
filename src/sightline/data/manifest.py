"""A directory's manifest: size and SHA-256 of every file, written last, so that any change of any byte is noticed.

Bundles and checkpoints have one. Hidden files, which file systems and desktops leave behind, are not part of the
directory; any other file that is not listed is refused.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sightline.data.disk import read_patiently, sync
from sightline.errors import DamagedError

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileNote:
    """What a file must be."""

    bytes: int
    sha256: str


def write_manifest(directory: Path) -> None:
    """Note size and hash of every file, after syncing each to the disk."""
    files = {}
    for file in sorted(directory.iterdir()):
        sync(file)
        files[file.name] = FileNote(file.stat().st_size, hash_file(file))
    manifest = directory / MANIFEST
    manifest.write_bytes(_written(files))
    sync(manifest)
    sync(directory)


def verify_manifest(directory: Path) -> str:
    """Raise unless every file is as the manifest says, and no other is there; gives the directory's identity.

    Raises:
        DamagedError: A file is missing, changed, torn, or not listed.
        StorageError: The disk cannot be read, which says nothing about the files.
    """
    try:
        return read_patiently(lambda: _verify(directory), what=f"read {str(directory)!r}")
    except OSError as error:
        raise DamagedError(f"{str(directory)!r} is not complete: {error}") from None


def _verify(directory: Path) -> str:
    data = (directory / MANIFEST).read_bytes()
    files = parse_manifest(data, str(directory))
    for name, noted in files.items():
        file = directory / name
        if file.stat().st_size != noted.bytes or hash_file(file) != noted.sha256:
            raise DamagedError(f"{str(file)!r} is not as it was written: get it anew from where it came")
    others = {file.name for file in directory.iterdir()} - {*files, MANIFEST}
    unlisted = sorted(name for name in others if not name.startswith("."))
    if unlisted:
        raise DamagedError(f"{str(directory)!r} holds {unlisted[0]!r}, which its manifest does not list: remove it")
    return identity(data)


def parse_manifest(data: bytes, place: str) -> dict[str, FileNote]:
    """The files that a manifest lists; only what `write_manifest` would have written, to the byte, is one.

    Args:
        place: Where it is from, for messages.
    """
    try:
        values: Any = json.loads(data)["files"]
        files = {str(name): FileNote(**noted) for name, noted in values.items()}
        same = _written(files) == data
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{place!r} is not complete: its {MANIFEST} cannot be read ({error})") from None
    if not same or not all(_is_plain(name) for name in files):
        raise DamagedError(f"{place!r} is not complete: its {MANIFEST} is not as it was written")
    return files


def identity(manifest: bytes) -> str:
    """The hash of a manifest, and so of everything that it lists."""
    return hashlib.sha256(manifest).hexdigest()


def hash_file(file: Path) -> str:
    """SHA-256 of a file."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _written(files: dict[str, FileNote]) -> bytes:
    return json.dumps({"files": {name: asdict(files[name]) for name in sorted(files)}}, indent=1).encode()


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file in the directory itself, and not of a hidden one."""
    return bool(name) and not name.startswith(".") and not {"/", "\\", "\0"} & set(name) and name != MANIFEST
