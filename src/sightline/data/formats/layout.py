"""Habits shared by annotation formats: names of splits, suffixes of images."""

import posixpath
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from sightline.data.decode import SUFFIXES
from sightline.data.record import Reject
from sightline.data.storage import LINK_REASONS, File, Folder, Skipped, ask_patiently

_SPLIT = re.compile(
    r"(train|training|val|valid|validation|dev|test|testing)(?:[-_ ]?(?:set|data|split|images))?(?:\d{4})?"
)
_CANONICAL = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}

LINK_ADVICE = "links are not followed: name the real folder as the source or with --images, or copy the images"


def split_named(name: str) -> str | None:
    """The split that a folder or list of this name means: "train2017" is train, "valid" is val; None if it is none."""
    found = _SPLIT.fullmatch(name.lower())
    return _CANONICAL.get(found[1], found[1]) if found else None


def split_of_path(path: str) -> str | None:
    """The split that any folder of a path names, outermost first."""
    return next((split for part in path.split("/")[:-1] if (split := split_named(part))), None)


def class_name(value: Any) -> str | None:
    """A class name from whatever a file has for one; None if it could not be a name."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() or None
    if isinstance(value, int | float | Decimal) and -(10**15) < value < 10**15:
        return str(int(value)) if value == int(value) and not isinstance(value, bool) else str(value)
    return None


def is_image(name: str) -> bool:
    """Whether a file's suffix is that of an image; what is in it is the decoder's business."""
    return posixpath.splitext(name)[1].lower() in SUFFIXES


def stem(name: str) -> str:
    """A file's base name without its suffix."""
    return posixpath.splitext(posixpath.basename(name))[0]


def read_list(folder: Folder, name: str) -> str:
    """The text of a file that lists images; a disk or bucket that fails for a while is asked again."""
    return ask_patiently(lambda: folder.read_text(name), what=f"reading {name!r}")


def walk_images(folder: Folder, name: str = "") -> Iterator[File | Reject]:
    """All images below a folder; what is not followed comes as a reject, other files not at all."""
    for found in folder.walk(name):
        if not isinstance(found, File):
            yield reject_skipped(found)
        elif is_image(found.name):
            yield found


def reject_skipped(found: Skipped) -> Reject:
    """How something that is not followed is reported: an image is lost, anything else is left."""
    action = "image rejected" if is_image(found.name) else "skipped"
    return Reject(found.name, "path", found.reason, LINK_ADVICE if found.reason in LINK_REASONS else "", action)
