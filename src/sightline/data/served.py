"""A dataset that lies where this process cannot see it, read through somebody who can."""

from pathlib import Path
from typing import Protocol

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

    def __init__(self, location: str, server: FileServer) -> None:
        self.location, self._server = location, server

    def open_file(self, name: str) -> "_ServedFile":
        """A file, open for random access."""
        return _ServedFile(name, self._server)


class _ServedFile:
    """A file of which every read is a request."""

    def __init__(self, name: str, server: FileServer) -> None:
        self._name, self._server, self._size = name, server, server.size(name)

    def size(self) -> int:
        return self._size

    def read_at(self, length: int, offset: int) -> bytes:
        wanted = min(length, max(self._size - offset, 0))
        return self._server.read(self._name, offset, wanted) if wanted else b""

    def close(self) -> None:
        """Nothing is held open."""
