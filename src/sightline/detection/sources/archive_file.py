"""The bytes of one file, local or in a bucket, at any place and for several threads at once."""

import io
import os
import posixpath
import stat
import threading
from typing import IO, Any

from sightline.data import disk
from sightline.detection.sources.names import open_folder
from sightline.detection.sources.paths import split_file
from sightline.errors import ImageError, StorageError

_BUFFER_BYTES = 1 << 20


class ArchiveFile:
    """A file that is opened when it is first read; where it lies is pickled, what is open is not.

    Attributes:
        public: Its absolute path or URL, without credentials.
    """

    def __init__(self, location: str) -> None:
        place, self._file = split_file(location)
        self._folder, public = open_folder(place)
        self.public = posixpath.join(public, self._file)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._remote: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_file", "_folder", "public")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]

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

    def stream(self) -> IO[bytes]:
        """The file from its beginning."""
        try:
            if self.is_local:
                return open(self.path, "rb", buffering=_BUFFER_BYTES)
            return io.BufferedReader(self._folder.open_file(self._file), _BUFFER_BYTES)
        except OSError as error:
            raise StorageError(f"cannot read {self.public!r}: {error}") from None

    def read_at(self, offset: int, size: int) -> bytes:
        """Some bytes, fewer at the end of the file."""
        try:
            if self.is_local:
                return os.pread(self._open(), size, offset)
            return bytes(self._open_remote().read_at(size, offset))
        except OSError as error:
            raise ImageError("file not readable", f"{self.public!r}: {error}"[:300], stage="read") from None

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.close(descriptor)
                    raise OSError("it is not a regular file")
                self._descriptor = descriptor
            return self._descriptor

    def _open_remote(self) -> Any:
        with self._lock:
            if self._remote is None:
                self._remote = self._folder.open_file(self._file)
            return self._remote
