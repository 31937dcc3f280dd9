"""Class folders for classification: CLASS/image or SPLIT/CLASS/image."""

import posixpath
import re
from collections.abc import Iterator

from sightline.data.formats.layout import split_named, stem, walk_images
from sightline.data.record import Entry, Loaded, Reject, Task
from sightline.data.storage import Folder
from sightline.errors import FormatError

_PARTS = re.compile(
    r"(jpeg)?(images?|imgs?|pictures?|photos?)|.*masks?|labels?|annotations?|gt|ground.?truths?|segmentation\w*|panoptic\w*",
    re.IGNORECASE,
)
"""Names of folders that hold the parts of one dataset rather than a class each."""


class ClassFolderReader:
    """Reads images whose class is the name of a folder."""

    task: Task = "classification"

    def __init__(self, source: Folder, *, classes: tuple[str, ...] | None = None) -> None:
        self._source = source
        splits = [name for name in self._folders() if split_named(name)]
        # A class may be called "train" too; a split has class folders in it.
        self._splits = splits if "train" in map(split_named, splits) and all(map(self._folders, splits)) else []
        self.classes = classes or self._find_classes()

    def _folders(self, name: str = "") -> list[str]:
        return [inner for inner, is_folder in self._source.names(name) if is_folder]

    def _find_classes(self) -> tuple[str, ...]:
        found = {name for split in self._splits or [""] for name in self._folders(split)}
        if not found:
            raise FormatError(f"{self._source.location!r} has no class folders")
        return tuple(sorted(found))

    def doubts(self) -> str:
        """Why the folders may not be classes after all; empty if nothing speaks against it."""
        named = ", ".join(map(repr, self.classes[:4]))
        if all(map(split_named, self.classes)):
            return f"images lie directly in {named}, which are names of splits, not of classes"
        parts = [name for name in self.classes if _PARTS.fullmatch(name)]
        if parts:
            return f"{parts[0]!r} is the name of a folder of images or segmentation masks, not of a class"
        if len(self.classes) == 2 and self._are_pairs(*self.classes):
            return f"{named} hold a JPEG and a mask of the same name for each image"
        return ""

    def _are_pairs(self, one: str, other: str) -> bool:
        """Whether two folders hold files of the same names, JPEGs in one and none in the other."""
        pairs = []
        for split in self._splits or [""]:
            names = [[name for name, _ in self._source.names(posixpath.join(split, part))] for part in (one, other)]
            pairs.append([({stem(name) for name in inner}, {_is_jpeg(name) for name in inner}) for inner in names])
        return all(a[0] == b[0] and a[1] | b[1] == {True, False} and a[1] != b[1] for a, b in pairs)

    @property
    def folders(self) -> tuple[Folder, ...]:
        """That of the images."""
        return (self._source,)

    def entries(self) -> Iterator[Entry | Reject]:
        """All images below the class folders, sorted by path."""
        labels = {name: index for index, name in enumerate(self.classes)}
        for found in walk_images(self._source):
            if isinstance(found, Reject):
                yield found
                continue
            parts = found.name.split("/")
            split = split_named(parts.pop(0)) if parts[0] in self._splits else None
            if len(parts) < 2 or (self._splits and split is None):
                yield Reject(found.name, "list", "image outside of any class folder")
            elif parts[0] not in labels:
                yield Reject(found.name, "annotation", "unknown class", repr(parts[0])[:200])
            else:
                yield Entry(found.name, found.size, split, payload=labels[parts[0]])

    def load(self, entry: Entry) -> Loaded:
        """Read one image."""
        return Loaded(self._source.read(entry.name), label=entry.payload)


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpg", ".jpeg", ".jpe"))
