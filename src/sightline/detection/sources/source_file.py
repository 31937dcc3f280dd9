"""The bytes of one file of a source, local or in a bucket, at any place and for several threads at once."""

import io
import os
import posixpath
import stat
import threading
from collections.abc import Callable
from typing import IO, Any, TypeVar

from sightline.data import disk
from sightline.data.position_reader import PositionReader
from sightline.data.storage import Folder
from sightline.detection.sources.names import open_folder
from sightline.detection.sources.paths import split_file
from sightline.errors import SourceError
from sightline.retry import STORAGE_RETRY

Result = TypeVar("Result")
_BUFFER_BYTES = 1 << 19


class SourceFile:
    """A file that is opened when it is first read; where it lies is pickled, what is open is not.

    All images of an archive or table lie in one file, so that it cannot be read is the fault of none of them.

    Attributes:
        public: Its absolute path or URL, without credentials.
    """

    def __init__(self, folder: Folder, name: str, *, public: str) -> None:
        self._folder, self._file, self.public = folder, name, public
        self._start()

    @classmethod
    def at(cls, location: str) -> "SourceFile":
        """The file at a path or URL."""
        place, name = split_file(location)
        folder, public = open_folder(place)
        return cls(folder, name, public=posixpath.join(public, name))

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._opened: _LocalFile | Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_file", "_folder", "public")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's disk."""
        return self._folder.is_local

    @property
    def path(self) -> str:
        """Its path on the disk."""
        return self._folder.full_path(self._file)

    def is_visible(self) -> bool:
        """Whether this process can read it."""
        return not self.is_local or disk.file_size(self.path) is not None

    def read_at(self, length: int, offset: int) -> bytes:
        """Some bytes, fewer at the end of the file.

        Raises:
            SourceError: It cannot be read at the moment; the next call opens it again.
        """
        return self._use(lambda file: bytes(file.read_at(length, offset)))

    def size(self) -> int:
        """Bytes of the file.

        Raises:
            SourceError: As `read_at`.
        """
        return self._use(lambda file: int(file.size()))

    def reader(self, *, patient: bool) -> PositionReader:
        """The file for libraries that read files.

        Args:
            patient: Whether what fails is tried again, from where it failed.
        """
        return _Reader(self, patient)

    def stream(self, *, buffer_bytes: int = _BUFFER_BYTES) -> IO[bytes]:
        """The file from its beginning; what fails is tried again."""
        return io.BufferedReader(self.reader(patient=True), buffer_bytes)

    def _use(self, call: Callable[[Any], Result]) -> Result:
        with self._lock:
            file = self._opened
        try:
            if file is None:
                file = _LocalFile(self.path) if self.is_local else self._folder.open_file(self._file)
                with self._lock:
                    self._opened = file
            return call(file)
        except OSError as error:
            with self._lock:
                self._opened = None  # What is open may stay broken when the disk or bucket is back.
            raise SourceError(
                f"{self.public!r} cannot be read: {error}. When it can be read again, run the same command"
            ) from None


class _Reader(PositionReader):
    def __init__(self, file: SourceFile, patient: bool) -> None:
        super().__init__()
        self._file, self._patient = file, patient

    def read_at(self, length: int, offset: int) -> bytes:
        return self._try(lambda: self._file.read_at(length, offset))

    def size(self) -> int:
        return self._try(self._file.size)

    def _try(self, call: Callable[[], Result]) -> Result:
        if not self._patient:
            return call()
        return STORAGE_RETRY.call(
            call, what=f"reading {self._file.public}", passes=lambda error: isinstance(error, SourceError)
        )


class _LocalFile:
    """A regular file; a pipe or a device would block."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise OSError("it is not a regular file")

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, length: int, offset: int) -> bytes:
        return os.pread(self._descriptor, length, offset)
