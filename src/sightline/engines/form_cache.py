"""Compiled forms on disk: a directory that is complete or absent, whose every byte is checked when it is read.

Two processes may make the same form at once: each writes its own directory, and the first to rename it wins.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from sightline.data.disk import sync
from sightline.errors import StorageError

_MANIFEST = "manifest.json"


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
