"""The files below a folder, with what changes when they do; names of large directories are sorted on the disk.

The rules are those of `Folder.walk`: hidden files are left out, links to folders are not followed, and the order
depends on the names only. What must not be read (a link out of the folder) is listed too, and reading it says why.
"""

import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from pyarrow import fs as pafs

from sightline.data import disk
from sightline.data.storage import Folder
from sightline.detection.sources.names import version_of
from sightline.detection.sources.sorted_names import SortedNames
from sightline.errors import SourceError
from sightline.retry import STORAGE_RETRY

Answer = TypeVar("Answer")
_FOLDER, _FILE, _ODD = "d", "f", "o"
"""What is in a directory; odd are links, pipes and devices."""


class Choice(Protocol):
    """Which files are wanted; a state says what has been met on the way down, and the first is `start`."""

    start: Any

    def below(self, state: Any, name: str) -> Any:
        """The state in a folder of this name, or None if nothing in it is wanted."""
        ...

    def wants(self, state: Any, name: str) -> bool:
        """Whether a file of this name is wanted."""
        ...


def walk(folder: Folder, choice: Choice) -> Iterator[tuple[str, str]]:
    """Name and version of the files that are wanted; the version is empty for what is not followed."""
    return _walk_local(folder, choice) if folder.is_local else _walk_bucket(folder, "", choice, choice.start)


def peek(folder: Folder) -> Iterator[tuple[str, bool]]:
    """(name, is_folder) of what is directly in a folder, in no order; hidden ones are left out."""
    if folder.is_local:
        with list_patiently(lambda: os.scandir(folder.path), what=folder.path) as listing:
            yield from ((e.name, e.is_dir(follow_symlinks=False)) for e in listing if not e.name.startswith("."))
    else:
        yield from ((info.base_name, info.type == pafs.FileType.Directory) for info in _list_bucket(folder, ""))


class _Level(NamedTuple):
    """A directory that is being walked: what is left of it, and the state of the choice in it."""

    name: str
    entries: Iterator[tuple[str, str]]
    state: Any


def _walk_local(folder: Folder, choice: Choice) -> Iterator[tuple[str, str]]:
    waiting = [_Level("", _scan(folder, "", choice, choice.start), choice.start)]
    while waiting:
        level = waiting[-1]
        for base, kind in level.entries:
            name = f"{level.name}/{base}" if level.name else base
            if kind == _FOLDER:
                inner = choice.below(level.state, base)
                waiting.append(_Level(name, _scan(folder, name, choice, inner), inner))
                break
            # A link is looked through only if it stays in the folder.
            known = kind == _FILE or folder.has(name)
            yield name, file_version(folder.full_path(name)) if known else ""
        else:
            waiting.pop()


def _scan(folder: Folder, name: str, choice: Choice, state: Any) -> Iterator[tuple[str, str]]:
    """Name and kind of what is wanted of a directory, in the order of the names."""
    path = folder.full_path(name)

    def scan() -> SortedNames:
        found = SortedNames()
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    kind = _kind(entry, choice, state)
                    if kind:
                        found.add(entry.name, kind)
        except (FileNotFoundError, NotADirectoryError):
            if not name or not disk.holds_something(folder.path):
                raise
            # Else it was removed since the directory above it was read.
        return found

    return iter(list_patiently(scan, what=path))


def _kind(entry: "os.DirEntry[str]", choice: Choice, state: Any) -> str | None:
    if entry.name.startswith("."):
        return None
    if entry.is_dir(follow_symlinks=False):
        return _FOLDER if choice.below(state, entry.name) is not None else None
    if not choice.wants(state, entry.name):
        return None
    return _FILE if entry.is_file(follow_symlinks=False) else _ODD


def list_patiently(ask: Callable[[], Answer], *, what: str) -> Answer:
    """What a disk or bucket answers; failures are tried again, for nothing of the answer was given out yet.

    Raises:
        SourceError: They persist, or cannot pass.
    """

    def once() -> Answer:
        try:
            return ask()
        except OSError as error:
            raise SourceError(f"cannot list {what!r}: {error}. When it can be read, run the same command") from error

    def may_pass(error: BaseException) -> bool:
        cause = error.__cause__
        return isinstance(cause, OSError) and not isinstance(cause, PermissionError | NotADirectoryError)

    return STORAGE_RETRY.call(once, what=f"listing {what}", passes=may_pass)


def file_version(path: str) -> str:
    """The version of a local file; empty if there is none."""
    try:
        status = _status(path)
    except OSError:
        status = list_patiently(lambda: _status(path), what=path)
    return version_of(status.st_size, status.st_mtime_ns) if status and stat.S_ISREG(status.st_mode) else ""


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except ValueError:  # A NUL in the name
        return None
    except OSError as error:
        if disk.concerns_one_file(error):
            return None
        raise


def _walk_bucket(folder: Folder, name: str, choice: Choice, state: Any) -> Iterator[tuple[str, str]]:
    for base, note in _sort_bucket(folder, name, choice, state):
        inner = posixpath.join(name, base)
        if note == _FOLDER:
            yield from _walk_bucket(folder, inner, choice, choice.below(state, base))
        else:
            yield inner, note.removeprefix(_FILE)


def _sort_bucket(folder: Folder, name: str, choice: Choice, state: Any) -> SortedNames:
    """What is wanted of a folder in a bucket: its kind, and the version of a file.

    Arrow gives a listing as a whole; it is in memory until it is sorted, not until all below it is walked.
    """
    infos, found = _list_bucket(folder, name), SortedNames()
    while infos:
        info = infos.pop()
        if info.type == pafs.FileType.Directory and choice.below(state, info.base_name) is not None:
            found.add(info.base_name, _FOLDER)
        elif info.type == pafs.FileType.File and choice.wants(state, info.base_name):
            found.add(info.base_name, _FILE + version_of(int(info.size or 0), info.mtime_ns))
    return found


def _list_bucket(folder: Folder, name: str) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(folder.full_path(name), allow_not_found=True)
    found = list_patiently(lambda: folder.filesystem.get_file_info(selector), what=folder.location)
    return [info for info in found if not info.base_name.startswith(".")]
