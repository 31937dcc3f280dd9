"""Compiled forms on disk: a directory that is complete or absent, whose every byte is checked when it is read.

Two processes may make the same form at once: each writes its own directory, and the first to rename it wins.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from sightline.data.disk import sync
from sightline.errors import StorageError

_MANIFEST = "manifest.json"


def private_directory(path: Path) -> Path:
    """Create a directory that its owner alone can enter, or check that nobody else can write to an existing one.

    The hashes of a form lie beside it, and only find damage: whoever can write there can replace both, and a compiled
    graph cannot be compared with its bundle without compiling it again. So a form is only taken from a directory that
    belongs to this user and that no other user can write to. Those who can write to the directory above it are trusted.

    Raises:
        StorageError: It belongs to another user, others can write to it, or the disk refused.
    """
    try:
        for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StorageError(f"cannot keep compiled forms of models in {str(path)!r}: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StorageError(
            f"compiled forms of models in {str(path)!r} are not used: it has mode {stat.filemode(found.st_mode)} and "
            f"belongs to user {found.st_uid}; expected a directory of user {os.getuid()} that nobody else can write "
            "to. Remove it, and the models are compiled again"
        )
    return path


def load_form(place: Path) -> dict[str, bytes] | None:
    """The files of a form by name; None if there is none, or it is not as it was written."""
    try:
        noted: dict[str, str] = json.loads((place / _MANIFEST).read_text("utf-8"))
        files = {name: (place / name).read_bytes() for name in noted}
    except (OSError, ValueError):
        return None
    whole = all(hashlib.sha256(content).hexdigest() == noted[name] for name, content in files.items())
    return files if whole and files else None


def store_form(place: Path, files: Mapping[str, bytes]) -> None:
    """Keep a form; whatever is there and whole stays.

    Raises:
        StorageError: The disk refused.
    """
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
    try:
        partial.mkdir(parents=True)
        for name, content in files.items():
            _write(partial / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        _write(partial / _MANIFEST, json.dumps(hashes, indent=1).encode())
        sync(partial)
        _put(partial, place)
        sync(place.parent)
    except OSError as error:
        raise StorageError(
            f"cannot keep the compiled form of a model in {str(place)!r}: {error}. Free some space or give another "
            "directory"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, place: Path) -> None:
    """Rename into place, past a damaged form if need be."""
    while True:
        try:
            partial.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if load_form(place) is not None:
                return  # Another process was first.
        broken = place.with_name(f".{place.name}.{secrets.token_hex(4)}.tmp")
        try:
            place.rename(broken)
        except FileNotFoundError:
            continue  # Another process took it away.
        shutil.rmtree(broken, ignore_errors=True)


def _write(file: Path, content: bytes) -> None:
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
