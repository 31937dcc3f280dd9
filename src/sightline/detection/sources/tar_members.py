"""Members of a tar archive, each read by itself; a compressed one is unpacked once, into a file without a name."""

import bz2
import gzip
import lzma
import os
import posixpath
import shutil
import tarfile
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sightline.data.disk import MAX_FILE_BYTES
from sightline.detection.sources.source_file import SourceFile
from sightline.errors import FormatError, ImageError, StorageError

_BLOCK_BYTES = 512
_COPY_BYTES = 4 << 20
_KEEP_FREE_BYTES = 256 << 20
_UNREADABLE = (tarfile.TarError, OSError, ValueError, EOFError, zlib.error, lzma.LZMAError, RecursionError)


class TarMembers:
    """What is in a tar; nothing is extracted, so names cannot lead anywhere."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._plain: SourceFile | None = None
        self._inode: tuple[int, int] | None = None

    def list(self) -> Iterator[tuple[str, str, str]]:
        """Name, version and ref of every member that is no folder; a ref that begins with ! says what is wrong."""
        with self._unpacked().stream() as stream:
            for member in self._members(stream):
                if not member.isdir():
                    ref = _ref(member, stream)
                    yield member.name, "" if ref.startswith("!") else f"{member.size}-{member.mtime}", ref

    def read(self, ref: str) -> bytes:
        """The bytes of a member, if its header is still the one that was listed."""
        offset, size, crc = map(int, ref.split(":"))
        if size > MAX_FILE_BYTES:
            raise ImageError("file not readable", f"it has {size} bytes, more than {MAX_FILE_BYTES}", stage="path")
        block = self._unpacked().read_at(_BLOCK_BYTES + size, offset - _BLOCK_BYTES)
        if len(block) != _BLOCK_BYTES + size or zlib.crc32(block[:_BLOCK_BYTES]) != crc:
            raise ImageError("damaged archive", f"at byte {offset}, or the archive was changed", stage="read")
        return block[_BLOCK_BYTES:]

    def is_visible(self) -> bool:
        """Whether the archive, or what it was unpacked into, is there."""
        plain = self._unpacked()
        return plain.is_visible() and self._inode in (None, _inode(plain.path))

    def __getstate__(self) -> dict[str, Any]:
        self._unpacked()
        return {"_file": self._file, "_plain": self._plain, "_inode": self._inode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def _members(self, stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
        end = -1
        try:
            with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
                while (member := archive.next()) is not None:
                    if member.offset_data <= end or member.size < 0:
                        raise ValueError(f"member {member.name!r} goes backwards")
                    end = member.offset_data
                    yield member
                    archive.members.clear()  # type: ignore[attr-defined]  # They would all be kept.
                stream.seek(archive.offset)
                if stream.read(_BLOCK_BYTES).strip(b"\0"):
                    raise ValueError(f"damaged at byte {archive.offset}")
        except _UNREADABLE as error:
            raise FormatError(f"{self._file.public!r} cannot be read as a tar archive: {error}") from None

    def _unpacked(self) -> SourceFile:
        with self._lock:
            if self._plain is None:
                with self._file.stream() as stream:
                    opened = _decompressor(stream)
                    self._plain = self._unpack(opened) if opened else self._file
            return self._plain

    def _unpack(self, opened: IO[bytes]) -> SourceFile:
        """Beside the archive if that may be written to, for it lies where there is room for large files."""
        beside = posixpath.dirname(self._file.path) if self._file.is_local else ""
        directory = beside if beside and os.access(beside, os.W_OK) else tempfile.gettempdir()
        try:
            scratch, path = _scratch(directory)
            weakref.finalize(self, scratch.close)
            while data := opened.read(_COPY_BYTES):
                if shutil.disk_usage(directory).free < _KEEP_FREE_BYTES + len(data):
                    scratch.close()
                    raise StorageError(f"no room in {directory!r} to unpack {self._file.public!r}: unpack it elsewhere")
                scratch.write(data)
            scratch.flush()
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno:  # Of what is written: damage has no number.
                raise StorageError(f"{self._file.public!r} cannot be unpacked into {directory!r}: {error}") from None
            raise FormatError(f"{self._file.public!r} cannot be unpacked: {error}") from None
        self._inode = _inode(path)
        return SourceFile.at(path)


def _decompressor(stream: IO[bytes]) -> IO[bytes] | None:
    """By what the file begins with; names lie."""
    begin = stream.read(6)
    stream.seek(0)
    if begin.startswith(b"\x1f\x8b"):
        return gzip.open(stream)  # type: ignore[return-value]
    if begin.startswith(b"BZh"):
        return bz2.open(stream)
    return lzma.open(stream) if begin == b"\xfd7zXZ\0" else None


def _scratch(directory: str) -> tuple[IO[bytes], str]:
    """A file that is gone when it is closed or its process ends, and the path by which others can open it."""
    if Path("/proc/self/fd").is_dir():
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    named = tempfile.NamedTemporaryFile(dir=directory, prefix=".sightline-")  # noqa: SIM115
    return named, named.name


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _ref(member: tarfile.TarInfo, stream: IO[bytes]) -> str:
    if not member.isreg():
        return "!not a regular file" if not (member.issym() or member.islnk()) else "!link in an archive"
    if member.issparse():
        return "!sparse file in an archive"
    stream.seek(member.offset_data - _BLOCK_BYTES)
    return f"{member.offset_data}:{member.size}:{zlib.crc32(stream.read(_BLOCK_BYTES))}"
