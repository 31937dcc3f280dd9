"""COCO JSON: one file a split, streamed, with annotations joined to images on disk rather than in memory."""

import json
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from sightline.data.formats.coco_join import CocoJoin, id_key
from sightline.data.formats.json_stream import refuse_failing_source, stream_items
from sightline.data.formats.layout import class_name, split_named, split_of_path, stem
from sightline.data.formats.writing import ExportDirectory
from sightline.data.location import leads_out
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import Folder, ask_patiently
from sightline.errors import FormatError
from sightline.structures import Sample, box_areas

_SNIFF_BYTES = 1 << 16
_NO_SPLITS = ("default", "all", "full")


class CocoReader:
    """Reads COCO instances files and the images they name."""

    task: Task = "detection"

    def __init__(
        self,
        source: Folder,
        files: list[str],
        *,
        classes: tuple[str, ...] | None = None,
        images: str | None = None,
    ) -> None:
        if not files:
            raise FormatError(f"no COCO JSON (with images, annotations and categories) in {source.location!r}")
        self._source, self._files = source, files
        self._images = Folder.open(images) if images else None
        self._categories = {file: self._read_categories(file) for file in files}
        self.classes = classes or _class_order(self._categories.values())

    @property
    def folders(self) -> tuple[Folder, ...]:
        """That of the images; annotations come with the entries."""
        return (self._images or self._source,)

    def entries(self) -> Iterator[Entry | Reject]:
        """The images of every file, in the file's order, each with its boxes."""
        seen: set[str] = set()
        for file in self._files:
            with closing(CocoJoin()) as join:
                yield from self._entries_of(file, join, seen)

    def load(self, entry: Entry) -> Loaded:
        """Read one image; its boxes came with the entry."""
        declared_size, boxes, rejects = entry.payload
        folder = self._images or self._source
        return Loaded(folder.read(entry.name), [RawBox(*box) for box in boxes], None, declared_size, False, rejects)

    def _read_categories(self, file: str) -> dict[str, tuple[Any, str]]:
        """Id and name of each category, by the key of its id."""
        categories = {}
        for item in stream_items(self._source, file, "categories"):
            if isinstance(item, dict):
                key, name = id_key(item.get("id")), class_name(item.get("name"))
                if key is not None and name is not None:
                    categories[key] = (item["id"], name)
        if not categories:
            raise FormatError(f"{file!r} has no categories with id and name: it is not a COCO instances file")
        return categories

    def _entries_of(self, file: str, join: CocoJoin, seen: set[str]) -> Iterator[Entry | Reject]:
        yield from join.add_images(file, stream_items(self._source, file, "images"))
        join.add_annotations(stream_items(self._source, file, "annotations"))
        prefix = self._image_folder(file, join)
        split = _split_of_file(file)
        by_name = {name: index for index, name in enumerate(self.classes)}
        labels = {key: by_name.get(name) for key, (_, name) in self._categories[file].items()}
        for (name, width, height), rows in join.images():
            full = posixpath.normpath(posixpath.join(prefix, name)) if not leads_out(name) else name
            if full in seen:
                yield Reject(full, "list", "listed twice", file, "skipped")
                continue
            seen.add(full)
            boxes, rejects = _boxes(full, rows, labels)
            declared = (width, height) if width and height else None
            yield Entry(full, 0, split, payload=(declared, boxes, rejects))
        yield from join.orphans(file)

    def _image_folder(self, file: str, join: CocoJoin) -> str:
        """Where the images of a file lie: the usual place in which most of its first images are found."""
        folder = self._images or self._source
        here = posixpath.dirname(file)
        above = posixpath.dirname(here)
        subset = stem(file).partition("_")[2] or stem(file)
        places = [here, "", *(posixpath.join(base, sub) for base in (here, above, "") for sub in ("images", subset))]
        places += [posixpath.join(base, "images", subset) for base in (here, above, "")]
        names = [name for name in join.first_names(20) if not leads_out(name)]

        def score(place: str) -> tuple[int, int]:
            paths = [posixpath.join(place, name) for name in names]
            # Behind a link out of the source they are not read, and reading them then says why.
            return sum(map(folder.has, paths)), sum(map(folder.is_file, paths))

        return max(places, key=score)


def _boxes(
    name: str, rows: list[tuple[Any, ...]], labels: dict[str, int | None]
) -> tuple[list[tuple[Any, ...]], list[Reject]]:
    boxes, rejects = [], []
    for number, category, *numbers, area, crowd, usable in rows:
        where = f"annotation {number}"
        label = labels.get(category)
        if not usable:
            rejects.append(Reject(name, "annotation", "annotation without a box", where, "box rejected"))
        elif label is None:
            rejects.append(
                Reject(name, "annotation", "unknown class", f"{where}: category {category}"[:200], "box rejected")
            )
        else:
            x, y, w, h = (float("nan") if value is None else value for value in numbers)
            boxes.append((x, y, x + w, y + h, label, bool(crowd), where, area))
    return boxes, rejects


def _class_order(categories: Iterable[dict[str, tuple[Any, str]]]) -> tuple[str, ...]:
    """Names by category id; files that agree give one list, whatever their order."""
    first_id: dict[str, tuple[str, Any]] = {}
    for found in categories:
        for key, name in found.values():
            rank = ("", key) if isinstance(key, int) else (str(key), 0)
            first_id[name] = min(first_id.get(name, rank), rank)
    return tuple(sorted(first_id, key=lambda name: (first_id[name], name)))


def _split_of_file(file: str) -> str | None:
    """By a word of the file's name, else by its folder, else what Sightline's exporter wrote behind `instances_`."""
    words = stem(file).replace("-", "_").split("_")
    named = next((split for word in words if (split := split_named(word))), None) or split_of_path(file)
    _, instances, subset = stem(file).partition("instances_")
    return named or (subset if instances and subset not in _NO_SPLITS else None) or None


def find_coco_files(source: Folder) -> list[str]:
    """COCO files of a folder: at its top, in `annotations`, or one in each split's folder."""
    places = ["", *(name for name, is_folder in source.names() if is_folder)]
    found = []
    for place in places:
        for name, is_folder in source.names(place):
            path = posixpath.join(place, name)
            if not is_folder and name.lower().endswith(".json") and looks_like_coco(source, path):
                found.append(path)
    instances = [path for path in found if posixpath.basename(path).startswith("instances")]
    return instances or found


def looks_like_coco(source: Folder, path: str) -> bool:
    """Whether a JSON file begins like COCO, without reading all of it."""
    head = ask_patiently(lambda: _read_head(source, path), what=f"reading {path}")
    return head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") and any(
        key in head for key in (b'"images"', b'"annotations"', b'"categories"')
    )


def _read_head(source: Folder, path: str) -> bytes:
    """Empty if it is not a file that can be read."""
    try:
        with source.filesystem.open_input_file(source.full_path(path)) as stream:
            return bytes(stream.read(_SNIFF_BYTES))
    except (OSError, ValueError) as error:
        refuse_failing_source(error, source, path)
        return b""


class CocoWriter:
    """Writes images/SPLIT and annotations/instances_SPLIT.json."""

    def __init__(self, directory: ExportDirectory, classes: tuple[str, ...]) -> None:
        self._directory, self._classes = directory, classes
        self._images: dict[str, list[dict[str, Any]]] = {}
        self._annotations: dict[str, list[dict[str, Any]]] = {}
        self._num_images = self._num_boxes = 0

    def add(self, sample: Sample) -> None:
        """Write one image; its boxes are kept for the split's file."""
        name = self._directory.unique_name(sample)
        self._directory.write(f"images/{sample.split}/{name}", sample.image)
        self._num_images += 1
        self._images.setdefault(sample.split, []).append(
            {"id": self._num_images, "file_name": name, "width": sample.width, "height": sample.height}
        )
        annotations = self._annotations.setdefault(sample.split, [])
        columns = sample.annotation
        areas = box_areas(columns.boxes) if columns.areas is None else columns.areas
        rows = (column.tolist() for column in (columns.boxes, columns.labels, columns.ignore, areas))
        for (x0, y0, x1, y1), label, ignore, area in zip(*rows, strict=True):
            self._num_boxes += 1
            annotations.append(
                {
                    "id": self._num_boxes,
                    "image_id": self._num_images,
                    "category_id": label + 1,
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": area,
                    "iscrowd": int(ignore),
                }
            )

    def close(self) -> None:
        """Write one instances file a split."""
        categories = [{"id": number, "name": name} for number, name in enumerate(self._classes, 1)]
        for split, images in self._images.items():
            content = {"images": images, "annotations": self._annotations[split], "categories": categories}
            self._directory.write(f"annotations/instances_{split}.json", json.dumps(content).encode())
