"""Locks on files, which end with their process; refused where a disk only pretends to have them."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import StorageError

_MISSING = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is not there.

    Raises:
        BlockingIOError: Somebody else has it.
        StorageError: There are no locks here.
    """
    descriptor = _lock(file)
    try:
        yield
    finally:
        os.close(descriptor)


def refuse_useless_locks(file: Path) -> None:
    """Raise StorageError if a lock can be had twice."""
    with locked(file):
        try:
            descriptor = _lock(file)
        except BlockingIOError:
            return
        os.close(descriptor)
        raise _no_locks(file, "a second process would get a lock that is held")


def _lock(file: Path) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _MISSING:
            raise _no_locks(file, str(error)) from error
        raise
    return descriptor


def _no_locks(file: Path, why: str) -> StorageError:
    return StorageError(
        f"the disk of {str(file.parent.parent)!r} has no locks that work ({why}), so rows there cannot be replaced "
        "safely: mount it with locks, or use a new target on a local disk or in a database"
    )
