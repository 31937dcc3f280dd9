"""Whether something is missing from a source of annotated images, or the source itself is out of reach."""

import posixpath
from collections.abc import Callable, Iterable
from typing import TypeVar

from pyarrow import fs as pafs

from sightline.data import disk
from sightline.data.storage import Folder, ask_patiently
from sightline.errors import ImageError, SourceError

Result = TypeVar("Result")


def load_patiently(load: Callable[[], Result], folders: Iterable[Folder], name: str) -> Result:
    """What is loaded from a source, which is asked again while it fails or is out of reach.

    Args:
        folders: Where it is loaded from.
        name: What is loaded, relative to one of them.

    Raises:
        ImageError: What is loaded, or the entry that names it, is to blame.
        SourceError: The source is out of reach for longer than the retry policy allows.
    """

    def load_once() -> Result:
        try:
            return load()
        except ImageError as error:
            if error.stage == "read":
                check_reach(folders, name)
            raise

    return ask_patiently(load_once, what=f"reading {name!r}")


def check_reach(folders: Iterable[Folder], name: str = "") -> None:
    """Raise SourceError if a folder is out of reach: missing, or empty as a mount point without its file system is.

    Args:
        name: Of a file; its directory stands for a folder that may be passed but not listed.
    """
    for folder in folders:
        if folder.is_local:
            _check_disk(folder, name)
        elif not folder.is_readable_still(apart_from=folder.full_path(name)):
            check_bucket(folder)


def _check_disk(folder: Folder, name: str) -> None:
    places = folder.path, folder.full_path(posixpath.dirname(name))
    if not any(map(disk.holds_something, places)):
        raise SourceError(
            f"{folder.location!r} is missing or empty on this machine: is it mounted? When it can be read again, run "
            "the same command"
        )


def check_bucket(folder: Folder) -> None:
    """Raise SourceError if the bucket of a folder is out of reach, or credentials are no longer valid.

    S3 forbids what is not there to those who may read objects, but not list them: look first whether one can be read.
    """
    path = folder.path.lstrip("/")
    bucket = folder.path[: len(folder.path) - len(path)] + path.partition("/")[0]
    try:
        found = folder.filesystem.get_file_info(bucket).type != pafs.FileType.NotFound
        why = "there is no such bucket"
    except OSError as error:
        found, why = False, str(error)
    if not found:
        raise SourceError(f"{folder.location!r} cannot be reached: {why}. When it can be, run the same command")
