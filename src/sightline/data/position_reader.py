"""A file for libraries that read files, made of reads at any position."""

import io
from typing import Any


class PositionReader(io.RawIOBase):
    """What subclasses read at any position can be read and sought in; Arrow and `tarfile` take it for a file."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0

    def read_at(self, length: int, offset: int) -> bytes:
        """Some bytes; fewer at the end of the file."""
        raise NotImplementedError

    def size(self) -> int:
        """Bytes of the file."""
        raise NotImplementedError

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def tell(self) -> int:
        """Where `read` goes on."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to where `read` goes on."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self.size() if start is None else start)
        return self._at

    def read(self, length: int | None = -1) -> bytes:
        """The next bytes."""
        wanted = max(0, self.size() - self._at) if length is None or length < 0 else length
        found = self.read_at(wanted, self._at)
        self._at += len(found)
        return found

    def readinto(self, into: Any) -> int:
        """The next bytes, for buffered readers."""
        found = self.read(len(into))
        into[: len(found)] = found
        return len(found)
