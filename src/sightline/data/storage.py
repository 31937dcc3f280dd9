"""Folders on a local disk or in a bucket, and the rule that nothing outside a source's root is ever opened."""

import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from sightline.errors import ImageError, NotFoundError, StorageError

BUCKET_SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "az", "hdfs", "memory", "r2", "oci", "webhdfs")


@dataclass(frozen=True, slots=True)
class File:
    """A file below a folder: its relative name with forward slashes, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something below a folder that is not followed, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Folder:
    """A directory, local or in a bucket; all names are relative to it and never lead out of it."""

    location: str
    filesystem: Any = field(repr=False)
    path: str
    is_local: bool
    _real_parents: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, location: str | Path) -> "Folder":
        """Open a path or URL; whether it exists is not asked."""
        text = str(location)
        scheme, separator, _ = text.partition("://")
        if not separator or scheme == "file":
            path = Path(text.removeprefix("file://")).expanduser().absolute()
            return cls(str(path), pafs.LocalFileSystem(), str(path), True)
        if scheme not in BUCKET_SCHEMES:
            raise StorageError(f"{text!r}: {scheme}:// is not opened; use a path or one of {', '.join(BUCKET_SCHEMES)}")
        filesystem, inner = _open_bucket(text)
        return cls(text, filesystem, inner.rstrip("/"), False)

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(Folder.open(state["location"]).__dict__)

    def child(self, name: str) -> "Folder":
        """The folder of that relative name."""
        if name in ("", "."):
            return self
        base, question, query = self.location.partition("?")
        return Folder.open(f"{posixpath.join(base, name)}{question}{query}")

    def full_path(self, name: str) -> str:
        """The path to hand to the filesystem, for a name that was made here and is trusted."""
        return posixpath.join(self.path, name) if name else self.path

    def safe_path(self, name: str) -> str:
        """The path of a name that came from an annotation; raises if it would lead out of the folder."""
        clean = posixpath.normpath(name.replace("\\", "/"))
        if not name or "\0" in name or clean.startswith(("/", "../")) or clean in (".", "..") or clean[1:2] == ":":
            raise ImageError("path leads out of the source", repr(name)[:200], stage="path")
        path = posixpath.join(self.path, clean)
        if self.is_local:
            self._refuse_symlink_out(path, name)
        return path

    def read(self, name: str) -> bytes:
        """The bytes of a file named by an annotation or a listing."""
        path = self.safe_path(name)
        try:
            if self.is_local:
                return _read_local(path)
            with self.filesystem.open_input_file(path) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise ImageError("file not found", repr(name)[:200], stage="read") from None
        except OSError as error:
            raise ImageError("file not readable", f"{name!r}: {error}"[:300], stage="read") from None

    def size(self, name: str) -> int | None:
        """Size in bytes of a trusted name, or None if there is no such file."""
        info = self.filesystem.get_file_info(self.full_path(name))
        return int(info.size or 0) if info.type == pafs.FileType.File else None

    def is_file(self, name: str) -> bool:
        """Whether there is such a file."""
        return self.size(name) is not None

    def is_folder(self, name: str = "") -> bool:
        """Whether there is such a folder."""
        return bool(self.filesystem.get_file_info(self.full_path(name)).type == pafs.FileType.Directory)

    def names(self, name: str = "") -> list[tuple[str, bool]]:
        """Sorted (name, is_folder) of what lies directly in a subfolder; empty if there is none."""
        selector = pafs.FileSelector(self.full_path(name), allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return sorted((info.base_name, info.type == pafs.FileType.Directory) for info in infos)

    def walk(self, name: str = "") -> Iterator[File | Skipped]:
        """All files below, in an order that depends on the names only; hidden ones are left out.

        Holds one directory in memory at a time. Links that lead out of the folder, and links to folders, are not
        followed but reported.
        """
        yield from self._walk_local(name) if self.is_local else self._walk_bucket(name)

    def _walk_local(self, name: str) -> Iterator[File | Skipped]:
        with os.scandir(self.full_path(name)) as listing:
            found = sorted(listing, key=lambda entry: entry.name)
        for entry in found:
            if entry.name.startswith("."):
                continue
            inner = posixpath.join(name, entry.name)
            if entry.is_symlink():
                yield self._judge_link(inner, entry)
            elif entry.is_dir():
                yield from self._walk_local(inner)
            elif entry.is_file():
                yield File(inner, entry.stat().st_size)

    def _judge_link(self, name: str, entry: "os.DirEntry[str]") -> File | Skipped:
        if entry.is_dir():
            return Skipped(name, "link to a folder is not followed")
        try:
            self._refuse_symlink_out(self.full_path(name), name)
            return File(name, entry.stat().st_size)
        except (ImageError, OSError):
            return Skipped(name, "path leads out of the source")

    def _walk_bucket(self, name: str) -> Iterator[File | Skipped]:
        infos = self.filesystem.get_file_info(pafs.FileSelector(self.full_path(name), allow_not_found=True))
        for info in sorted(infos, key=lambda info: info.base_name):
            inner = posixpath.join(name, info.base_name)
            if info.base_name.startswith("."):
                continue
            if info.type == pafs.FileType.Directory:
                yield from self._walk_bucket(inner)
            elif info.type == pafs.FileType.File:
                yield File(inner, int(info.size or 0))

    def _refuse_symlink_out(self, path: str, name: str) -> None:
        """Resolve links; parents are remembered, for thousands of files share them."""
        parent, base = posixpath.split(path)
        real_root = self._real_parent(self.path)
        real = posixpath.join(self._real_parent(parent), base)
        if _is_link(real):
            real = os.path.realpath(real)
        if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
            raise ImageError(
                "path leads out of the source", f"{name!r} is or lies below a link to {real!r}"[:300], stage="path"
            )

    def _real_parent(self, path: str) -> str:
        found = self._real_parents.get(path)
        if found is None:
            found = self._real_parents[path] = os.path.realpath(path)
        return found


def open_existing(location: str | Path) -> Folder:
    """Open a folder that must be there."""
    folder = Folder.open(location)
    if not folder.is_folder():
        kind = "is a file, not a folder" if folder.is_file("") else "does not exist"
        raise NotFoundError(f"{str(location)!r} {kind}")
    return folder


def file_in_folder(location: str) -> tuple[Folder, str]:
    """A single file as a folder and a name in it."""
    base, question, query = location.partition("?")
    parent, name = posixpath.split(base)
    return Folder.open((parent or ".") + question + query), name


def without_secrets(location: str) -> str:
    """A location as it may be written down: without user, password or query."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _open_bucket(url: str) -> tuple[Any, str]:
    try:
        return pafs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except Exception as error:
        arrow_error = error
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        raise StorageError(f"cannot open {url!r}: {arrow_error}; {error}") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _read_local(path: str) -> bytes:
    """Read a regular file; anything else (a pipe, a device) would block or never end."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        return file.read()


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False
