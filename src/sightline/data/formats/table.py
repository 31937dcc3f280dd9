"""Existing tables with an image column and box columns, one row a box or one row an image."""

import base64
import binascii
import hashlib
import json
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.data.formats.layout import split_named
from sightline.data.formats.table_rows import Row, Table
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import Folder
from sightline.errors import ConfigError, FormatError, ImageError

ALIASES = {
    "image": ("image", "image_data", "image_bytes", "image_base64", "img", "data", "content", "bytes"),
    "path": ("path", "image_path", "file_path", "relative_path", "uri"),
    "name": ("file_name", "filename", "image_name", "image_id", "name", "id"),
    "split": ("split", "subset", "partition"),
    "class": ("class", "class_name", "label", "label_name", "category", "classes", "labels"),
    "xmin": ("xmin", "x_min", "x1", "left"),
    "ymin": ("ymin", "y_min", "y1", "top"),
    "xmax": ("xmax", "x_max", "x2", "right"),
    "ymax": ("ymax", "y_max", "y2", "bottom"),
    "boxes": ("boxes", "bboxes", "bbox"),
    "ignore": ("ignore", "difficult", "iscrowd"),
    "width": ("width", "image_width"),
    "height": ("height", "image_height"),
}
CORNERS = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True, slots=True)
class Roles:
    """Which column plays which part."""

    columns: dict[str, str]

    @classmethod
    def find(cls, names: list[str], given: dict[str, str]) -> "Roles":
        """By what the caller says, else by usual names in any case."""
        lower = {name.lower(): name for name in names}
        for role, column in given.items():
            if role not in ALIASES:
                raise ConfigError(f"--columns {role}={column}: {role!r} is not one of {', '.join(ALIASES)}")
            if column not in names:
                raise ConfigError(f"--columns {role}={column}: the table has {', '.join(names)}")
        usual = {
            role: lower[alias] for role, aliases in ALIASES.items() for alias in reversed(aliases) if alias in lower
        }
        roles = cls(usual | given)
        if not ({"image", "path"} & set(roles.columns)):
            raise FormatError(f"no image or path column among {', '.join(names)}: say --columns image=COLUMN")
        return roles

    @property
    def has_boxes(self) -> bool:
        """Whether any column holds boxes."""
        return "boxes" in self.columns or all(corner in self.columns for corner in CORNERS)

    def value(self, row: Row, role: str) -> Any:
        """The value of a role in a row; None if no column plays it."""
        column = self.columns.get(role)
        return row.get(column) if column else None


class TableReader:
    """Reads a table twice: once for boxes and classes, grouped by image on disk, once for the images."""

    def __init__(
        self,
        table: Table,
        images: Folder | None,
        *,
        columns: dict[str, str] | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self._table: Table | None = table
        self._images = images
        self._roles = Roles.find(table.columns, columns or {})
        self.task: Task = "detection" if self._roles.has_boxes else "classification"
        directory = tempfile.mkdtemp(prefix="sightline-table-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._boxes = _BoxStore(Path(directory) / "boxes.sqlite")
        found = self._read_annotations(table)
        self.classes = classes or found
        if not self.classes:
            raise FormatError("the table has no class names: say --columns class=COLUMN")

    def __getstate__(self) -> dict[str, Any]:
        # A worker only loads; the table and the grouped boxes stay with the driver.
        return {"_images": self._images, "task": self.task, "classes": self.classes}

    def entries(self) -> Iterator[Entry | Reject]:
        """Each image once, in the order of its first row, with all of its boxes."""
        assert self._table is not None, "entries are listed by the driver only"
        labels = {name: index for index, name in enumerate(self.classes)}
        seen: set[bytes] = set()
        wanted = ("image", "path", "name", "split", "width", "height")
        names = [self._roles.columns[role] for role in wanted if role in self._roles.columns]
        for number, row in enumerate(self._table.rows(names)):
            key = self._key(row, number)
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]
            if digest not in seen:
                seen.add(digest)
                yield self._entry(key, row, number, labels)

    def load(self, entry: Entry) -> Loaded:
        """Decode the image's text, or read its file."""
        image, path, declared_size, boxes, label, rejects = entry.payload
        if image is not None:
            data = _image_bytes(image)
        elif self._images is None:
            raise ImageError("no image", "the table names paths: say --images FOLDER", stage="read")
        else:
            data = self._images.read(path)
        return Loaded(data, [RawBox(*box) for box in boxes], label, declared_size, False, rejects)

    def _entry(self, key: str, row: Row, number: int, labels: dict[str, int]) -> Entry | Reject:
        image, path = self._roles.value(row, "image"), self._roles.value(row, "path")
        if isinstance(image, dict):  # Hugging Face's layout
            nested: dict[str, Any] = image
            image, path = nested.get("bytes"), nested.get("path") or path
        if image is None and not isinstance(path, str):
            return Reject(key, "read", "no image", f"row {number}: the image column is empty")
        boxes, classes, rejects = self._boxes.of(key, labels)
        if self.task == "classification":
            if not classes:
                return Reject(key, "annotation", "unknown class", f"row {number}")
            boxes, label = [], classes[0]
        else:
            label = None
        size = self._roles.value(row, "width"), self._roles.value(row, "height")
        declared = size if all(isinstance(side, int) and side > 0 for side in size) else None
        split = self._roles.value(row, "split")
        split = (split_named(str(split)) or str(split)) if split not in (None, "") else None
        payload = (image, path if image is None else None, declared, boxes, label, rejects)
        return Entry(key, len(image) if image is not None else 0, split, payload)

    def _key(self, row: Row, number: int) -> str:
        """What tells one image from another: its name, else its path, else its content, else its row."""
        for role in ("name", "path"):
            if (value := self._roles.value(row, role)) is not None:
                return str(value)
        image = self._roles.value(row, "image")
        if self._one_row_a_box and image is not None:
            return hashlib.sha256(image.encode() if isinstance(image, str) else bytes(image)).hexdigest()
        return f"row-{number}"

    @property
    def _one_row_a_box(self) -> bool:
        return "boxes" not in self._roles.columns and not self._boxes.saw_lists

    def _read_annotations(self, table: Table) -> tuple[str, ...]:
        wanted = ["name", "path", "class", "boxes", "ignore", *CORNERS]
        if not {"name", "path"} & set(self._roles.columns):
            wanted.append("image")
        columns = [self._roles.columns[role] for role in wanted if role in self._roles.columns]
        classes: set[str] = set()
        for number, row in enumerate(table.rows(columns)):
            items = list(_objects(row, self._roles))
            self._boxes.saw_lists |= len(items) != 1
            self._boxes.add(self._key(row, number), number, items)
            classes.update(label for label, _, _ in items if label is not None)
        self._boxes.finish()
        return tuple(
            sorted(classes, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
        )


class _BoxStore:
    """Boxes grouped by image in a temporary SQLite database."""

    def __init__(self, path: Path) -> None:
        self.saw_lists = False
        self._db = sqlite3.connect(path)
        self._db.executescript(
            "pragma journal_mode=off; pragma synchronous=off;"
            "create table box (key text, row int, label text, x0, y0, x1, y1, ignore int, usable int);"
        )

    def add(self, key: str, number: int, items: list[tuple[str | None, list[float] | None, bool]]) -> None:
        for label, box, ignore in items:
            row = (key, number, label, *(box or (None,) * 4), int(ignore), int(box is not None))
            self._db.execute("insert into box values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def finish(self) -> None:
        self._db.execute("create index by_key on box (key)")

    def of(self, key: str, labels: dict[str, int]) -> tuple[list[tuple[Any, ...]], list[int], list[Reject]]:
        boxes, classes, rejects = [], [], []
        found = self._db.execute("select * from box where key = ? order by rowid", (key,))
        for _, row, label, *numbers, ignore, usable in found:
            where = f"row {row}"
            if label not in labels:
                rejects.append(Reject(key, "annotation", "unknown class", f"{where}: {label!r}"[:200], "box rejected"))
                continue
            classes.append(labels[label])
            if usable:
                corners = [float("nan") if value is None else value for value in numbers]
                boxes.append((*corners, labels[label], bool(ignore), where))
        return boxes, classes, rejects


def _objects(row: Row, roles: Roles) -> Iterator[tuple[str | None, list[float] | None, bool]]:
    """(class, xyxy, ignore) of each object in a row; an image without objects gives none."""
    classes, ignores = _as_list(roles.value(row, "class")), _as_list(roles.value(row, "ignore"))
    if not roles.has_boxes:
        yield _class_name(classes[0] if classes else None), None, False
        return
    if "boxes" in roles.columns:
        boxes = [_corners(box) for box in _as_list(roles.value(row, "boxes"))]
    else:
        columns = [_as_list(roles.value(row, corner)) for corner in CORNERS]
        if all(column == [None] or not column for column in columns):
            return
        boxes = [list(box) for box in zip(*columns, strict=True)] if len({len(c) for c in columns}) == 1 else [[]]
    for index, box in enumerate(boxes):
        label = classes[index] if index < len(classes) else None
        ignore = bool(ignores[index]) if index < len(ignores) else False
        yield _class_name(label), [_number(value) for value in box] if len(box) == 4 else [float("nan")] * 4, ignore


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def _corners(box: Any) -> list[Any]:
    if isinstance(box, dict):
        lower = {str(key).lower(): value for key, value in box.items()}
        return [next((lower[a] for a in ALIASES[corner] if a in lower), None) for corner in CORNERS]
    return list(box) if isinstance(box, list | tuple) else []


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _class_name(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _class_rank(name: str) -> tuple[bool, int, str]:
    """Numbers by value, then names by spelling."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def _image_bytes(image: Any) -> bytes:
    if not isinstance(image, str):
        return bytes(image)
    text = image.partition(",")[2] if image.startswith("data:") else image
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("image text is not base64", repr(image[:40]), stage="read") from None
