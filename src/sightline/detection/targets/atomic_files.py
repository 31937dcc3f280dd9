"""Files of a directory that several processes and machines share: each is whole or absent, and the first one stays.

A file is written beside and linked into place, which fails if the name is taken. A disk that fails for a while is asked
again. An operation whose answer was lost may be done already; then the bytes that are there are those to be written.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sightline.data.disk import make_directory, may_pass, sync
from sightline.errors import StorageError
from sightline.process_identity import is_abandoned, unique_name
from sightline.retry import STORAGE_RETRY

T = TypeVar("T")

PARTIAL = ".partial"
"""The folder of files that are being written."""


class AtomicFiles:
    """The files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make_folders(self, names: Iterable[str]) -> None:
        """Make the directory and folders in it, some of which may be there already."""

        def make() -> None:
            for name in names:
                make_directory(self.directory / name)

        self.retried("make folders", make)

    def retried(self, what: str, work: Callable[[], T]) -> T:
        """What the work returns; work that fails in a way that may pass is done again.

        Args:
            what: What is done, for messages.

        Raises:
            StorageError: For every OSError that does not pass.
        """
        what = f"{what} in {str(self.directory)!r}"
        try:
            return STORAGE_RETRY.call(work, what=f"an attempt to {what}", passes=may_pass)
        except OSError as error:
            raise StorageError(f"cannot {what}: {error}; mend that, then run the same command again") from error

    def create(self, name: str, content: bytes, *, durable: bool = True) -> bool:
        """A file that is complete or absent; false if there is another of that name, which then stays."""
        return self.retried(f"write {name}", lambda: self._create(self.directory / name, content, durable))

    def replace(self, name: str, content: bytes) -> None:
        """A file in place of the one of that name, in one step."""
        self.retried(f"write {name}", lambda: self.replace_now(name, content))

    def replace_now(self, name: str, content: bytes) -> None:
        """The same, tried once; raises OSError."""
        final = self.directory / name
        partial = self._write(content, durable=True)
        try:
            partial.rename(final)
        except FileNotFoundError:  # A network disk may have done it, and asked its server once more.
            if not _holds(final, content):
                raise
        finally:
            _remove(partial)
        sync(final.parent)

    def read(self, name: str, *, revalidate: bool = False) -> bytes | None:
        """The content of a file; None if there is none.

        Args:
            revalidate: Ask the server of a network disk, which remembers for a while that a name was not there.
        """
        return self.retried(f"read {name}", lambda: self._read(self.directory / name, revalidate))

    def unlink(self, name: str) -> bool:
        """Remove a file; false if there is none."""
        return self.retried(f"remove {name}", lambda: _unlink(self.directory / name))

    def remove_abandoned(self) -> None:
        """Remove what killed processes left half-written; whatever else lies there is not ours."""
        with suppress(OSError):  # It is in nobody's way.
            for place in (self.directory / PARTIAL).iterdir():
                if is_abandoned(place.name):
                    _remove(place)

    def _create(self, final: Path, content: bytes, durable: bool) -> bool:
        partial = self._write(content, durable=durable)
        try:
            os.link(partial, final)
        except FileExistsError:
            if not _holds(final, content):
                return False
        finally:
            _remove(partial)
        if durable:
            sync(final.parent)
        return True

    def _write(self, content: bytes, *, durable: bool) -> Path:
        partial = self.directory / PARTIAL / unique_name()
        try:
            with open(partial, "xb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError:
            _remove(partial)
            raise
        return partial

    def _read(self, file: Path, revalidate: bool) -> bytes | None:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            if not revalidate or file.name not in os.listdir(file.parent):  # noqa: PTH208
                return None
            return file.read_bytes()


def _holds(file: Path, content: bytes) -> bool:
    try:
        return file.read_bytes() == content
    except FileNotFoundError:
        return False


def _unlink(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove(file: Path) -> None:
    """What cannot be removed is in nobody's way."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
