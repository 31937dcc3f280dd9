"""The files below a folder, with what changes when they do; one directory's names a level are in memory.

The rules are those of `Folder.walk`: hidden files are left out, links to folders are not followed, and the order
depends on the names only. What must not be read (a link out of the folder) is listed too, and reading it says why.
"""

import os
import posixpath
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pyarrow import fs as pafs

from sightline.data.storage import Folder
from sightline.detection.sources.names import version_of
from sightline.errors import StorageError


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
        with _listing(folder, "") as listing:
            yield from ((e.name, e.is_dir(follow_symlinks=False)) for e in listing if not e.name.startswith("."))
    else:
        yield from ((info.base_name, info.type == pafs.FileType.Directory) for info in _list_bucket(folder, ""))


class _Level(NamedTuple):
    """A directory that is being walked: what is left of it, the states of its folders, and which files are odd."""

    name: str
    path: str
    names: Iterator[str]
    folders: dict[str, Any]
    odd: set[str]


def _walk_local(folder: Folder, choice: Choice) -> Iterator[tuple[str, str]]:
    waiting = [_scan(folder, "", choice, choice.start)]
    while waiting:
        level = waiting[-1]
        for base in level.names:
            name = f"{level.name}/{base}" if level.name else base
            if base in level.folders:
                waiting.append(_scan(folder, name, choice, level.folders[base]))
                break
            # A link is looked through only if it stays in the folder.
            known = base not in level.odd or folder.has(name)
            yield name, file_version(f"{level.path}/{base}") if known else ""
        else:
            waiting.pop()


def _scan(folder: Folder, name: str, choice: Choice, state: Any) -> _Level:
    """Names alone are kept, a fifth of what directory entries would take."""
    names: list[str] = []
    folders, odd = {}, set()
    with _listing(folder, name) as listing:
        for entry in listing:
            base = entry.name
            if base.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                inner = choice.below(state, base)
                if inner is None:
                    continue
                folders[base] = inner
            elif not choice.wants(state, base):
                continue
            elif not entry.is_file(follow_symlinks=False):
                odd.add(base)
            names.append(base)
    names.sort()
    return _Level(name, folder.full_path(name), iter(names), folders, odd)


def _listing(folder: Folder, name: str) -> Any:
    try:
        return os.scandir(folder.full_path(name))
    except OSError as error:
        raise StorageError(f"cannot list {folder.full_path(name)!r}: {error}") from error


def file_version(path: str) -> str:
    """The version of a local file; empty if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return ""
    return version_of(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else ""


def _walk_bucket(folder: Folder, name: str, choice: Choice, state: Any) -> Iterator[tuple[str, str]]:
    for info in sorted(_list_bucket(folder, name), key=lambda info: info.base_name):
        inner = posixpath.join(name, info.base_name)
        if info.type == pafs.FileType.Directory:
            below = choice.below(state, info.base_name)
            if below is not None:
                yield from _walk_bucket(folder, inner, choice, below)
        elif info.type == pafs.FileType.File and choice.wants(state, info.base_name):
            yield inner, version_of(int(info.size or 0), info.mtime_ns)


def _list_bucket(folder: Folder, name: str) -> list[pafs.FileInfo]:
    try:
        found = folder.filesystem.get_file_info(pafs.FileSelector(folder.full_path(name), allow_not_found=True))
    except OSError as error:
        raise StorageError(f"cannot list {folder.location!r}: {error}") from error
    return [info for info in found if not info.base_name.startswith(".")]
