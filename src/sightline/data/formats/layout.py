"""Habits shared by annotation formats: names of splits, suffixes of images."""

import posixpath
import re
from collections.abc import Iterator

from sightline.data.decode import SUFFIXES
from sightline.data.record import Reject
from sightline.data.storage import File, Folder

_SPLIT = re.compile(
    r"(train|training|val|valid|validation|dev|test|testing)(?:[-_ ]?(?:set|data|split|images))?(?:\d{4})?"
)
_CANONICAL = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}


def split_named(name: str) -> str | None:
    """The split that a folder or list of this name means: "train2017" is train, "valid" is val; None if it is none."""
    found = _SPLIT.fullmatch(name.lower())
    return _CANONICAL.get(found[1], found[1]) if found else None


def split_of_path(path: str) -> str | None:
    """The split that any folder of a path names, outermost first."""
    return next((split for part in path.split("/")[:-1] if (split := split_named(part))), None)


def is_image(name: str) -> bool:
    """Whether a file's suffix is that of an image; what is in it is the decoder's business."""
    return posixpath.splitext(name)[1].lower() in SUFFIXES


def stem(name: str) -> str:
    """A file's base name without its suffix."""
    return posixpath.splitext(posixpath.basename(name))[0]


def walk_images(folder: Folder, name: str = "") -> Iterator[File | Reject]:
    """All images below a folder; links that are not followed come as rejects, other files not at all."""
    for found in folder.walk(name):
        if not isinstance(found, File):
            yield Reject(found.name, "path", found.reason)
        elif is_image(found.name):
            yield found
