"""The number of the attempt that may write to a run's directory.

Every start of a run's workers is a new attempt, over all drivers that the run ever had. A worker that survived its
driver, or is cut off from it, belongs to an older one: what it saves is refused.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sightline.data.disk import may_pass
from sightline.errors import DamagedError, StaleAttemptError, Stopped, StorageError
from sightline.retry import STORAGE_RETRY

Result = TypeVar("Result")

FILE = "attempt"
_DIGITS = 12
_LOCK_TIMEOUT_S = 60.0
_POLL_S = 0.05


class AttemptFence:
    """The newest attempt of a run, in a file that is locked while it is read or changed.

    The lock is held for a few calls of the file system only. A process that holds it for longer waits for a disk.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE

    def advance(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Begin a new attempt; returns its number.

        Raises:
            Stopped: It was asked to stop while another process held the file.
            StorageError: The disk refused, or another process did not release the file.
        """

        def increment() -> int:
            descriptor = self._lock(should_stop)
            try:
                attempt = self._read(descriptor) + 1
                os.pwrite(descriptor, f"{attempt:{_DIGITS}d}\n".encode(), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return attempt

        return self._patiently(increment)

    @contextmanager
    def held(self, attempt: int) -> Iterator[None]:
        """Let no newer attempt begin while this lasts.

        Raises:
            StaleAttemptError: One has begun.
            StorageError: As for `advance`.
        """
        descriptor = self._patiently(lambda: self._lock(lambda: False))
        try:
            newest = self._patiently(lambda: self._read(descriptor))
            if newest != attempt:
                raise StaleAttemptError(
                    f"attempt {attempt} at run {self._file.parent.name!r} was replaced by attempt {newest}: "
                    "this worker saves nothing more"
                )
            yield
        finally:
            os.close(descriptor)

    def _lock(self, should_stop: Callable[[], bool]) -> int:
        """The file, opened and locked until it is closed."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline = time.monotonic() + _LOCK_TIMEOUT_S
            while not _try_lock(descriptor):
                if should_stop():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"another process has held {str(self._file)!r} for {_LOCK_TIMEOUT_S:.0f} s: a worker of an "
                        "earlier attempt that waits for a disk, perhaps; end it, and run the same command again"
                    )
                time.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _read(self, descriptor: int) -> int:
        # NULs are what some file systems leave of a file that was being written when the power failed.
        text = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip("\0 \n")
        if text and not text.isdecimal():
            raise DamagedError(f"{str(self._file)!r} should hold a number, and holds {text[:20]!r}: remove it")
        return int(text or 0)

    def _patiently(self, function: Callable[[], Result]) -> Result:
        what = f"access {str(self._file)!r}"
        try:
            return STORAGE_RETRY.call(function, what=what, passes=may_pass)
        except OSError as error:
            raise StorageError(f"cannot {what}: {error}") from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
