"""Folders on a local disk or in a bucket, and the rule that nothing outside a source's root is ever opened."""

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import fs as pafs

from sightline.data import disk
from sightline.data.location import BUCKET_SCHEMES, leads_out, open_bucket, without_secrets
from sightline.errors import ImageError, NotFoundError, SourceError, StorageError
from sightline.retry import STORAGE_RETRY

Result = TypeVar("Result")

_LEADS_OUT, _FOLDER_LINK = "path leads out of the source", "link to a folder is not followed"
LINK_REASONS = (_LEADS_OUT, _FOLDER_LINK)
"""Why a link was not followed."""
NOT_FOUND = "file not found"


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
    """A directory, local or in a bucket; all names are relative to it and never lead out of it.

    Attributes:
        location: How it is named in messages and manifests: without credentials.
        path: What the filesystem calls it.
    """

    location: str
    filesystem: Any = field(repr=False)
    path: str
    is_local: bool
    _url: str = field(default="", repr=False)
    _real_parents: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    _readable: list[str] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def open(cls, location: str | Path) -> "Folder":
        """Open a path or URL; whether it exists is not asked."""
        text = str(location)
        scheme, separator, _ = text.partition("://")
        if not separator or scheme == "file":
            path = Path(text.removeprefix("file://")).expanduser().absolute()
            return cls(str(path), pafs.LocalFileSystem(), str(path), True)
        if scheme not in BUCKET_SCHEMES:
            shown = without_secrets(text)
            raise StorageError(
                f"{shown!r}: {scheme}:// is not opened; use a path or one of {', '.join(BUCKET_SCHEMES)}"
            )
        filesystem, inner = open_bucket(text)
        return cls(without_secrets(text), filesystem, inner.rstrip("/"), False, text)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url or self.location, "readable": self._readable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(Folder.open(state["url"]).__dict__ | {"_readable": state["readable"]})

    def child(self, name: str) -> "Folder":
        """The folder of that relative name."""
        if name in ("", "."):
            return self
        base, question, query = (self._url or self.location).partition("?")
        return Folder.open(f"{posixpath.join(base, name)}{question}{query}")

    def full_path(self, name: str) -> str:
        """The path to hand to the filesystem, for a name that was made here and is trusted."""
        return posixpath.join(self.path, name) if name else self.path

    def safe_path(self, name: str) -> str:
        """The path of a name that came from an annotation; raises if it would lead out of the folder."""
        clean = posixpath.normpath(name)
        # Annotations made on Windows have backslashes; on a disk elsewhere these may be part of a name.
        slashed = posixpath.normpath(name.replace("\\", "/"))
        if leads_out(name):
            raise ImageError(_LEADS_OUT, repr(name)[:200], stage="path")
        path = self.full_path(clean)
        if clean != slashed and not self.is_file(clean):
            path = self.full_path(slashed)
        if self.is_local:
            self._refuse_symlink_out(path, name)
        return path

    def read(self, name: str) -> bytes:
        """The bytes of a file named by an annotation or a listing.

        Raises:
            ImageError: The name, or the file of that name, is to blame.
            SourceError: The disk or bucket cannot be read at the moment.
        """
        path = self.safe_path(name)
        try:
            if self.is_local:
                return disk.read_file(path)
            with self.filesystem.open_input_file(path) as stream:
                disk.check_size(stream.size())
                self.note_readable(path)
                return bytes(stream.read())
        except (OSError, ValueError) as error:
            raise read_failure(name, IsADirectoryError() if self._is_bucket_folder(path) else error) from None

    def note_readable(self, path: str) -> None:
        """Remember the object of a bucket that could be read last."""
        self._readable[:] = [path]

    def is_readable_still(self, *, apart_from: str) -> bool | None:
        """Whether the object that could be read last can be opened now; None if that is none, or this one."""
        path = next(iter(tuple(self._readable)), apart_from)
        if path == apart_from:
            return None
        try:
            with self.filesystem.open_input_file(path):
                return True
        except FileNotFoundError:  # It was removed too: the next that can be read takes its place.
            self._readable.clear()
            return None
        except OSError:
            return False

    def _is_bucket_folder(self, path: str) -> bool:
        """Whether a bucket says so; what opening a folder raises differs from one to the other."""
        try:
            return not self.is_local and self.filesystem.get_file_info(path).type == pafs.FileType.Directory
        except (OSError, ValueError):
            return False

    def open_file(self, name: str) -> Any:
        """An Arrow file of a trusted name, open for random access."""
        return self.filesystem.open_input_file(self.full_path(name))

    def read_text(self, name: str) -> str:
        """The text of a list or label file: UTF-8 with or without a byte order mark, other bytes kept as escapes."""
        return self.read(name).decode("utf-8", "surrogateescape").removeprefix("\ufeff")

    def size(self, name: str) -> int | None:
        """Size in bytes of a trusted name, or None if there is no such file.

        Raises:
            SourceError: The disk or bucket cannot say at the moment; the same goes for `is_file` and `is_folder`.
        """
        found = self._status(name)
        if self.is_local:
            return found.st_size if found and stat.S_ISREG(found.st_mode) else None
        return int(found.size or 0) if found.type == pafs.FileType.File else None

    def is_file(self, name: str) -> bool:
        """Whether there is such a file."""
        return self.size(name) is not None

    def is_folder(self, name: str = "") -> bool:
        """Whether there is such a folder."""
        found = self._status(name)
        if self.is_local:
            return bool(found and stat.S_ISDIR(found.st_mode))
        return bool(found.type == pafs.FileType.Directory)

    def _status(self, name: str) -> Any:
        """What a disk or bucket says of a trusted name."""
        path = self.full_path(name)
        try:
            return disk.status(path) if self.is_local else self.filesystem.get_file_info(path)
        except OSError as error:
            failure = read_failure(path, error)
            if isinstance(failure, SourceError):
                raise failure from None
            return None if self.is_local else pafs.FileInfo(path)  # Forbidden, as S3 says of what is not there, too.

    def names(self, name: str = "") -> list[tuple[str, bool]]:
        """Sorted (name, is_folder) of the files and folders directly in a subfolder; empty if there is none.

        Hidden ones, links that lead out of the folder, pipes and devices are left out. A disk or bucket that fails for
        a while is asked again.
        """
        return ask_patiently(lambda: self._names(name), what=f"listing {self.full_path(name)!r}")

    def _names(self, name: str) -> list[tuple[str, bool]]:
        if not self.is_folder(name):
            return []
        if self.is_local:
            found = [inner for inner, _ in self._scan(name) if self.has(inner)]
            return [(posixpath.basename(inner), self.is_folder(inner)) for inner in found]
        infos = self._list_bucket(name)
        kept = [info for info in infos if not info.base_name.startswith(".")]
        return sorted((info.base_name, info.type == pafs.FileType.Directory) for info in kept)

    def walk(self, name: str = "") -> Iterator[File | Skipped]:
        """All files below, in an order that depends on the names only; hidden ones are left out.

        Holds the names of one directory a level in memory. Links that lead out of the folder, links to folders, pipes
        and devices are not followed but reported.
        """
        yield from self._walk_local(name) if self.is_local else self._walk_bucket(name)

    def _walk_local(self, name: str) -> Iterator[File | Skipped]:
        waiting = [self._scan(name)]
        while waiting:
            for inner, entry in waiting[-1]:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(self._scan(inner))
                    break
                yield self._judge(inner, entry)
            else:
                waiting.pop()

    def _scan(self, name: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        path = self.full_path(name)

        def scan() -> list[os.DirEntry[str]]:
            with os.scandir(path) as listing:
                return sorted((e for e in listing if not e.name.startswith(".")), key=lambda entry: entry.name)

        try:
            found = disk.read_patiently(scan, what=f"list {path!r}")
        except OSError as error:
            raise StorageError(f"cannot list {path!r}: {error}") from error
        return iter([(posixpath.join(name, entry.name), entry) for entry in found])

    def _judge(self, name: str, entry: "os.DirEntry[str]") -> File | Skipped:
        if entry.is_symlink() and entry.is_dir():
            return Skipped(name, _FOLDER_LINK)
        if entry.is_symlink() and not self.has(name):
            return Skipped(name, _LEADS_OUT)
        if not entry.is_file():
            return Skipped(name, "not a regular file")
        try:
            return File(name, entry.stat().st_size)
        except OSError:  # Reading it tells whether it is gone or the disk fails.
            return File(name, ask_patiently(lambda: self.size(name), what=f"asking for {name!r}") or 0)

    def _walk_bucket(self, name: str) -> Iterator[File | Skipped]:
        infos = ask_patiently(lambda: self._list_bucket(name), what=f"listing {self.full_path(name)!r}")
        for info in sorted(infos, key=lambda info: info.base_name):
            inner = posixpath.join(name, info.base_name)
            if info.base_name.startswith("."):
                continue
            if info.type == pafs.FileType.Directory:
                yield from self._walk_bucket(inner)
            elif info.type == pafs.FileType.File:
                yield File(inner, int(info.size or 0))

    def _list_bucket(self, name: str) -> list[pafs.FileInfo]:
        try:
            found = self.filesystem.get_file_info(pafs.FileSelector(self.full_path(name), allow_not_found=True))
        except OSError as error:
            raise SourceError(f"cannot list {self.location!r}: {error}") from error
        return list(found)

    def has(self, name: str) -> bool:
        """Whether a name is a file or folder that no link leads out of the source."""
        try:
            if self.is_local:
                self._refuse_symlink_out(self.full_path(name), name)
        except ImageError:
            return False
        return self.is_file(name) or self.is_folder(name)

    def _refuse_symlink_out(self, path: str, name: str) -> None:
        """Resolve links; parents are remembered, for thousands of files share them."""
        parent, base = posixpath.split(path)
        real_root = self._real_parent(self.path)
        real = posixpath.join(self._real_parent(parent), base)
        if disk.is_link(real):
            real = os.path.realpath(real)
        if real != real_root and not real.startswith(real_root.rstrip("/") + "/"):
            raise ImageError(_LEADS_OUT, f"{name!r} is or lies below a link to {real!r}"[:300], stage="path")

    def _real_parent(self, path: str) -> str:
        found = self._real_parents.get(path)
        if found is None:
            try:
                found = self._real_parents[path] = os.path.realpath(path, strict=True)
            except OSError as error:  # What is not there now is not remembered.
                if not disk.concerns_one_file(error):
                    raise read_failure(path, error) from None
                return os.path.realpath(path)
        return found


def read_failure(name: str, error: OSError | ValueError) -> ImageError | SourceError:
    """What to raise when a file cannot be read: it tells the file's own failures from those of its disk or bucket."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ImageError(NOT_FOUND, repr(name)[:200], stage="read")
    detail = f"{name!r}: {error}"[:300]
    if isinstance(error, disk.UnsuitableFile | ValueError):  # ValueError: a name that no disk or bucket can have
        return ImageError("file not readable", detail, stage="path")
    if disk.concerns_one_file(error) or "ACCESS_DENIED" in detail:
        return ImageError("file not readable", detail, stage="read")
    return SourceError(f"{detail}. When it can be read again, run the same command")


def ask_patiently(ask: Callable[[], Result], *, what: str) -> Result:
    """What a source answers; one that cannot be read is asked again.

    Args:
        what: What is done, for the log.

    Raises:
        SourceError: It could not be read for longer than the retry policy allows.
    """
    return STORAGE_RETRY.call(ask, what=what, passes=lambda error: isinstance(error, SourceError))


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
