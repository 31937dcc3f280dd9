"""A dataset that lies where this process cannot see it, read through somebody who can."""

import io
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from sightline.data.dataset import Dataset
from sightline.errors import SightlineError


class FileServer(Protocol):
    """Somebody who sees the dataset's directory."""

    def size(self, name: str) -> int:
        """Bytes of a file."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file."""
        ...


class DirectoryServer:
    """Serves the files directly below a dataset's directory, and nothing else."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._path(name).stat().st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file."""
        with open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read(length)

    def _path(self, name: str) -> Path:
        if Path(name).name != name or name == "..":
            raise ValueError(f"{name!r} is not the name of a dataset's file")
        return self._directory / name


def within_reach(dataset: Dataset, server: FileServer) -> Dataset:
    """The dataset itself where it can be opened, else one that is read by ranges: only the images that are wanted."""
    if "://" in dataset.location:  # A bucket, which everybody can open.
        return dataset
    try:
        if Dataset.open(dataset.location).info == dataset.info:
            return dataset
    except SightlineError:
        pass  # It is not here.
    return dataset.read_through(ServedFolder(dataset.location, server))


class ServedFolder:
    """A folder whose files are read by request."""

    is_local = False

    def __init__(self, location: str, server: FileServer) -> None:
        self.location, self._server = location, server

    def full_path(self, name: str) -> str:
        """How a file is named in messages."""
        return f"{self.location}/{name}"

    def open_file(self, name: str) -> Any:
        """An Arrow file, open for random access."""
        return pa.PythonFile(_ServedFile(name, self._server), mode="r")


class _ServedFile(io.RawIOBase):
    """A file of which every read is a request."""

    def __init__(self, name: str, server: FileServer) -> None:
        super().__init__()
        self._name, self._server, self._at, self._size = name, server, 0, server.size(name)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, length: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        wanted = left if length is None or length < 0 else min(length, left)
        found = self._server.read(self._name, self._at, wanted) if wanted else b""
        self._at += len(found)
        return found
