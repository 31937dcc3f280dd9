"""A file of a dataset, read by position; a disk, bucket or network that fails for a while is asked again."""

import threading
from typing import Any, Protocol

from sightline.data.position_reader import PositionReader
from sightline.errors import DamagedError, StorageError
from sightline.retry import STORAGE_RETRY


class DatasetFolder(Protocol):
    """Where the files of a dataset lie; `Folder` is one."""

    @property
    def location(self) -> str:
        """How it is named in messages."""
        ...

    def open_file(self, name: str) -> Any:
        """An Arrow file, open for random access; raises OSError if that fails."""
        ...


class StoredFile(PositionReader):
    """Reads at any position, from several threads at once; Arrow takes it for a file.

    Args:
        beside: A file that every such folder has. Where it can be opened, one that is not found is missing for good;
            where it cannot, the whole folder is out of reach, and may come back.
    """

    def __init__(self, folder: DatasetFolder, name: str, *, beside: str) -> None:
        super().__init__()
        self._folder, self._name, self._beside = folder, name, beside
        self._lock = threading.Lock()
        self._file: Any = None

    def read_at(self, length: int, offset: int) -> bytes:
        """Some bytes; fewer at the end of the file.

        Raises:
            StorageError: It could not be read for longer than the retry policy allows.
            DamagedError: The file is missing from its folder.
        """
        return bytes(self._try(lambda file: file.read_at(length, offset)))

    def size(self) -> int:
        """Bytes of the file."""
        return int(self._try(lambda file: file.size()))

    def _try(self, use: Any) -> Any:
        place = f"{self._folder.location}/{self._name}"
        try:
            return STORAGE_RETRY.call(lambda: self._use(use), what=f"reading {place}", passes=self._may_pass)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._sees_folder():
                raise DamagedError(f"{place} is not the file that was written: it is missing") from error
            raise StorageError(
                f"{place} could not be read for {STORAGE_RETRY.give_up_after_s:g} s: {error}. When it can be read "
                "again, run the same command"
            ) from error

    def _use(self, use: Any) -> Any:
        with self._lock:
            file = self._file = self._file or self._folder.open_file(self._name)
        try:
            return use(file)
        except OSError:
            with self._lock:
                self._file = None  # A handle may stay broken when the file system is back.
            raise

    def _may_pass(self, error: BaseException) -> bool:
        if not isinstance(error, OSError):
            return False
        return not (isinstance(error, FileNotFoundError) and self._sees_folder())

    def _sees_folder(self) -> bool:
        try:
            self._folder.open_file(self._beside).close()
        except OSError:
            return False
        return True
