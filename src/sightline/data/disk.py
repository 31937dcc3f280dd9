"""Files of the local disk, asked through `os`: names that are not UTF-8 work, and only regular files are opened."""

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 30

_OF_ONE_FILE = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EILSEQ,
    }
)


class UnsuitableFile(OSError):
    """A file that is never read, however well its disk works: no regular one, or too large."""


def concerns_one_file(error: OSError) -> bool:
    """Whether an error is about the file that was asked for; any other, such as EIO or ESTALE, is about its disk."""
    return isinstance(error, UnsuitableFile) or error.errno in _OF_ONE_FILE


def holds_something(path: str) -> bool:
    """Whether a directory can be listed and is not empty, as a mount point without its file system is."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except (OSError, ValueError):
        return False


def file_size(path: str) -> int | None:
    """Size of a regular file, or None if there is none of that name."""
    status = _status(path)
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


def is_directory(path: str) -> bool:
    """Whether there is a directory of that name."""
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_link(path: str) -> bool:
    """Whether the last part of a path is a symbolic link."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_file(path: str) -> bytes:
    """Read a regular file; a pipe or a device would block or never end, so it is not even opened."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise UnsuitableFile("it is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsuitableFile("it is not a regular file")
        check_size(status.st_size)
        return file.readall()


def check_size(num_bytes: int) -> None:
    """Raise UnsuitableFile for a file, local or in a bucket, that is too large to be read into memory."""
    if num_bytes > MAX_FILE_BYTES:
        raise UnsuitableFile(f"it has {num_bytes} bytes, more than {MAX_FILE_BYTES}")


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file or directory lies on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing; when this returns, the names of all lie on the disk."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
