"""DeepPCB: lists of image and label pairs whose image names lack `_test`, with template images between them."""

import posixpath
from collections.abc import Iterator

from sightline.data.formats.layout import read_list, walk_images
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import File, Folder
from sightline.errors import FormatError, ImageError

CLASSES = ("open", "short", "mousebite", "spur", "copper", "pin-hole")
LISTS = {"trainval.txt": "train", "test.txt": "test"}


class DeepPcbReader:
    """Reads the pairs of trainval.txt and test.txt."""

    task: Task = "detection"

    def __init__(self, source: Folder, *, classes: tuple[str, ...] | None = None) -> None:
        if classes and len(classes) != len(CLASSES):
            raise FormatError(f"DeepPCB has the six types {', '.join(CLASSES)}; --classes gives {len(classes)}")
        self._source = source
        self.classes = classes or CLASSES

    @property
    def folders(self) -> tuple[Folder, ...]:
        """That of images and labels."""
        return (self._source,)

    def entries(self) -> Iterator[Entry | Reject]:
        """The listed pairs in the order of the lists; templates and unlisted images are reported as skipped."""
        found = list(walk_images(self._source))
        sizes = {file.name: file.size for file in found if isinstance(file, File)}
        seen: set[str] = set()
        for list_name, split in LISTS.items():
            if not self._source.is_file(list_name):
                continue
            for number, line in enumerate(read_list(self._source, list_name).split("\n"), 1):
                if line.strip():
                    yield self._entry(line.split(), f"{list_name} line {number}", split, sizes, seen)
        yield from (reject for reject in found if isinstance(reject, Reject) and reject.name not in seen)
        for name in sizes:
            if name not in seen:
                template = posixpath.splitext(name)[0].endswith("_temp")
                yield Reject(name, "list", "template image" if template else "not in any list", action="skipped")

    def _entry(self, words: list[str], where: str, split: str, sizes: dict[str, int], seen: set[str]) -> Entry | Reject:
        if len(words) != 2:
            return Reject(where, "list", "list line does not parse", f"{len(words)} words instead of 2", "skipped")
        listed, label_name = words
        base, suffix = posixpath.splitext(listed)
        image = next((name for name in (f"{base}_test{suffix}", listed) if name in sizes), listed)
        if image in seen:
            return Reject(image, "list", "listed twice", where, "skipped")
        seen.add(image)
        return Entry(image, sizes.get(image, 0), split, payload=label_name)

    def load(self, entry: Entry) -> Loaded:
        """Read the image and its `x1 y1 x2 y2 type` lines."""
        text = self._source.read_text(entry.payload)
        loaded = Loaded(self._source.read(entry.name))
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    loaded.boxes.append(self._box(line, f"line {number}"))
                except ImageError as error:
                    detail = f"{entry.payload} line {number}: {error.detail}"
                    loaded.rejects.append(Reject(entry.name, "annotation", error.reason, detail, "box rejected"))
        return loaded

    def _box(self, line: str, where: str) -> RawBox:
        try:
            x0, y0, x1, y1, kind = (float(word) for word in line.replace(",", " ").split())
        except ValueError:
            raise ImageError("label line does not parse", repr(line)[:100]) from None
        if kind not in range(1, len(self.classes) + 1):
            raise ImageError("unknown class", f"type {kind:g} is not 1 to {len(self.classes)}")
        return RawBox(x0, y0, x1, y1, int(kind) - 1, where=where)
