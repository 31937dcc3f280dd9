"""Class folders for classification: CLASS/image or SPLIT/CLASS/image."""

from collections.abc import Iterator

from sightline.data.formats.layout import split_named, walk_images
from sightline.data.record import Entry, Loaded, Reject, Task
from sightline.data.storage import Folder
from sightline.errors import FormatError


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
