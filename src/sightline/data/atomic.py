"""Atomic publication: write to a uniquely named hidden sibling, then put it in place in one step.

Whoever opens the final name sees the old content or the new one, whole, and two writers never share a partial file. A
writer that is killed leaves a hidden sibling at most, which a later writer removes after a day.
"""

import ctypes
import errno
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sightline.data.disk import sync

_STALE_S = 24 * 3600
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def replacing_file(final: Path) -> Iterator[Path]:
    """A path to write a file to; it replaces the final one when the block ends without an error."""
    partial = _sibling(final, "tmp")
    try:
        yield partial
        sync(partial)
        partial.replace(final)
        sync(final.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def partial_directory(final: Path) -> Iterator[Path]:
    """A new directory beside the final one, to be published with `publish_directory`; what is left of it is removed."""
    _remove_stale(final)
    partial = _sibling(final, "tmp")
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def publish_directory(partial: Path, final: Path) -> None:
    """Rename a directory into place; what was there before is removed after the new one is in place."""
    while True:
        try:
            partial.rename(final)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _exchange(partial, final):
            break  # The partial name now holds the old content.
        # No atomic exchange here: between this rename and the next, `recover_directory` finds the old content.
        with suppress(FileNotFoundError):
            final.rename(_sibling(final, "old"))
    sync(final.parent)
    for old in _siblings(final, "old"):
        shutil.rmtree(old, ignore_errors=True)


def recover_directory(final: Path) -> None:
    """Put the old content back if a writer died after it had moved it aside and before the new one was in place."""
    if final.exists():
        return
    for old in sorted(_siblings(final, "old"), key=lambda path: path.stat().st_mtime, reverse=True)[:1]:
        with suppress(OSError):  # The writer lives and was quicker, or another reader was, or the disk is read-only.
            old.rename(final)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; False where the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.ENOENT):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sibling(final: Path, suffix: str) -> Path:
    return final.with_name(f".{final.name}.{secrets.token_hex(8)}.{suffix}")


def _siblings(final: Path, suffix: str) -> list[Path]:
    prefix = f".{final.name}."
    if not final.parent.is_dir():
        return []
    return [
        path
        for path in final.parent.iterdir()
        if path.name.startswith(prefix) and path.name.endswith(f".{suffix}") and len(path.name) == len(prefix) + 20
    ]


def _remove_stale(final: Path) -> None:
    for path in _siblings(final, "tmp"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
