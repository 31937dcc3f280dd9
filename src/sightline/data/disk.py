"""Files of the local disk, asked through `os`: names that are not UTF-8 work, and only regular files are opened."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sightline.errors import StorageError
from sightline.retry import STORAGE_RETRY

Result = TypeVar("Result")

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


_PASSING = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ENOTCONN,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}
"""What network disks answer while their server, or the way to it, is away. A full disk does not pass by itself."""


class UnsuitableFile(OSError):
    """A file that is never read, however well its disk works: no regular one, or too large."""


def concerns_one_file(error: OSError) -> bool:
    """Whether an error is about the file that was asked for; any other, such as EIO or ESTALE, is about its disk."""
    return isinstance(error, UnsuitableFile) or error.errno in _OF_ONE_FILE


def may_pass(error: BaseException) -> bool:
    """Whether a failure of a disk may pass by itself."""
    return isinstance(error, OSError) and error.errno in _PASSING


def says_it_may_pass(message: str) -> bool:
    """The same for what libraries tell of such a failure in words."""
    return any(os.strerror(number) in message for number in _PASSING)


def is_missing(error: OSError) -> bool:
    """Whether an error says that there is no such file; not one that is forbidden, nor a disk that fails."""
    return concerns_one_file(error) and not isinstance(error, PermissionError)


def read_patiently(read: Callable[[], Result], *, what: str) -> Result:
    """What a disk answers; one that fails for a while is asked again, for that says nothing about what lies on it.

    Args:
        what: What is done, for messages: "read …".

    Raises:
        OSError: What was asked for is missing; no other OSError is raised.
        StorageError: The disk fails for longer than the retry policy allows, or forbids it.
    """
    try:
        return STORAGE_RETRY.call(
            read,
            what=f"an attempt to {what}",
            passes=lambda error: isinstance(error, OSError) and not concerns_one_file(error),
        )
    except OSError as error:
        if is_missing(error):
            raise
        raise StorageError(f"cannot {what}: {error}. When it can be read again, run the same command") from error


def can_be_opened(path: str) -> bool:
    """Whether a file that is known to be a regular one can be opened to be read."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, ValueError):
        return False
    return True


def holds_something(path: str) -> bool:
    """Whether a directory is there and not empty, as a mount point without its file system is.

    One that may be passed, but not listed, is taken to hold something.
    """
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False


def file_size(path: str) -> int | None:
    """Size of a regular file, or None if there is none of that name."""
    found = _status(path)
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def is_directory(path: str) -> bool:
    """Whether there is a directory of that name."""
    found = _status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


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
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode):
            raise UnsuitableFile("it is not a regular file")
        check_size(opened.st_size)
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


def status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What a disk says of a name; None if there is nothing of that name.

    Raises:
        OSError: The disk cannot say.
    """
    try:
        return os.stat(path)  # noqa: PTH116
    except ValueError:  # A NUL in the name
        return None
    except OSError as error:
        if concerns_one_file(error):
            return None
        raise


def _status(path: str) -> os.stat_result | None:
    try:
        return status(path)
    except OSError:
        return None
