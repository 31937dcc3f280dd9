"""Whether an image is missing, or the place where it lies: only then is the image to blame.

A mount point without its file system, another disk in its place, and a bucket whose objects may no longer be read look
like images that were removed. So an image that was listed is to blame only while others of its folder or bucket are
there: the one that was read last, or, before any was read, another image in its directory.
"""

import os
import posixpath

from sightline.data import disk
from sightline.data.formats.layout import is_image
from sightline.data.reach import check_bucket
from sightline.data.storage import NOT_FOUND, Folder
from sightline.detection.item import Item
from sightline.errors import ImageError, SourceError

_MOST_MISSED = 8
"""Listed images that may be missing while none is known that was read and is there still."""
_PLACES = 64
"""Directories of which the image that was read last is remembered."""


class Reach:
    """What this process knows of the place of a source's images; several threads may ask."""

    def __init__(self) -> None:
        self._read: dict[str, str] = {}
        self._missed: set[str] | None = set()

    def note_read(self, path: str = "") -> None:
        """An image was read: at this path, if it lies on a local disk."""
        self._missed = None
        if len(self._read) >= _PLACES:
            self._read.clear()
        self._read[posixpath.dirname(path)] = path

    def check(self, error: ImageError, item: Item, folder: Folder, name: str) -> None:
        """Raise SourceError if an image could not be read because its place is out of reach; else it is to blame."""
        if error.stage != "read":
            return
        if folder.is_local:
            self.check_file(error, item, folder.full_path(name))
        elif item.version or error.reason != NOT_FOUND:  # Credentials that are no longer valid forbid everything.
            self._check_object(error, item, folder, name)

    def check_file(self, error: ImageError, item: Item, path: str) -> None:
        """The same for a file of a local disk.

        An item without a version was not there when it was listed either, so nothing that was there has gone.
        """
        if not item.version or disk.file_size(path) is not None:  # It is there, and forbidden.
            return
        place = posixpath.dirname(path)
        other = self._read.get(place, path)
        if other != path and disk.can_be_opened(other):
            return
        if self._read.pop(place, None):  # It may have been removed, too.
            self._missed = set()
        if not _holds_images(place, path):
            what = "holds no images" if disk.holds_something(place) else "is missing or empty"
            raise _gone(item, f"{place!r} {what} on this machine: is it mounted?") from error
        self._count(error, item, place)

    def _check_object(self, error: ImageError, item: Item, folder: Folder, name: str) -> None:
        other = folder.is_readable_still(apart_from=folder.full_path(name))
        if other:  # S3 forbids what is not there to those who may read objects, but not list them.
            return
        if other is False:
            raise _gone(item, f"no object of {folder.location!r} that was read before can be read any more.") from error
        check_bucket(folder)
        if item.version and error.reason != NOT_FOUND:
            raise _gone(item, f"no object of {folder.location!r} could be read yet: {error}.") from error
        if item.version:
            self._count(error, item, folder.location)

    def _count(self, error: ImageError, item: Item, place: str) -> None:
        """Several, and none that can be read, may mean that another disk is in the place of the one that was listed."""
        missed = self._missed
        if missed is None:
            return
        missed.add(item.image_id)
        if len(missed) >= _MOST_MISSED:
            why = f"{len(missed)} images in a row cannot be read, the last of {place!r}."
            raise _gone(item, why) from error


def _gone(item: Item, why: str) -> SourceError:
    """From the error of the image, which `Lenient` looks for."""
    return SourceError(
        f"{item.uri!r} was there when it was listed, and now {why} When the images are there again, run the same "
        "command. If they were removed for good, --set source.missing=reject rejects each of them; or write to "
        "another --to"
    )


def _holds_images(place: str, missing: str) -> bool:
    """Whether a directory can be listed and holds an image, or a file with the suffix of the one that is missing.

    Hidden files and folders do not count: they also lie in mount points without their file system.
    """
    suffix = posixpath.splitext(missing)[1]
    try:
        with os.scandir(place) as entries:
            names = (entry.name for entry in entries if not entry.name.startswith(".") and not entry.is_dir())
            return any(is_image(name) or posixpath.splitext(name)[1] == suffix for name in names)
    except (OSError, ValueError):
        return False
