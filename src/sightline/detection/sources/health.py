"""Whether an image is missing, or the place where all of them lie."""

import posixpath

from pyarrow import fs as pafs

from sightline.data import disk
from sightline.data.storage import NOT_FOUND, Folder
from sightline.detection.item import Item
from sightline.errors import ImageError, SourceError


def check_place(error: ImageError, item: Item, folder: Folder, name: str) -> None:
    """Raise SourceError if an image could not be read because its folder is out of reach; else it is to blame itself.

    An item without a version was not there when it was listed either, so nothing that was there has gone.
    """
    if error.stage != "read":
        return
    if folder.is_local:
        check_disk(item, folder.full_path(name), root=folder.path)
    elif item.version or error.reason != NOT_FOUND:  # Credentials that are no longer valid forbid everything.
        _check_bucket(folder)


def check_disk(item: Item, path: str, *, root: str | None = None) -> None:
    """Raise SourceError if the directory of a file that was listed, and the root, are missing or empty.

    Without a root, the nearest directory that is there stands for it: one image may be removed with its directory.
    """
    places = [posixpath.dirname(path), root or _nearest(posixpath.dirname(path))]
    if item.version and not any(map(disk.holds_something, places)):
        raise SourceError(
            f"{path!r} was there when it was listed, and now {places[-1]!r} is missing or empty on this machine: is it "
            "mounted? If the images were removed for good, write to another --to"
        )


def _nearest(path: str) -> str:
    while not disk.is_directory(path) and path != "/":
        path = posixpath.dirname(path)
    return path


def _check_bucket(folder: Folder) -> None:
    if folder.is_readable_still():  # S3 forbids what is not there to those who may read objects, but not list them.
        return
    path = folder.path.lstrip("/")
    bucket = folder.path[: len(folder.path) - len(path)] + path.partition("/")[0]
    try:
        found = folder.filesystem.get_file_info(bucket).type != pafs.FileType.NotFound
        why = f"there is no {bucket!r}"
    except OSError as error:
        found, why = False, str(error)
    if not found:
        raise SourceError(f"{folder.location!r} cannot be reached: {why}. When it can be, run the same command")
