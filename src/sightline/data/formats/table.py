"""Existing tables with an image column and box columns, one row a box or one row an image."""

import base64
import binascii
import hashlib
import math
import sqlite3
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sightline.config import BoxFormat
from sightline.data.formats.layout import split_named
from sightline.data.formats.table_boxes import decide_format
from sightline.data.formats.table_cells import CORNERS, Item, Roles, whole
from sightline.data.formats.table_rows import Row, Table
from sightline.data.location import without_secrets
from sightline.data.record import Entry, Loaded, RawBox, Reject, Task
from sightline.data.storage import Folder
from sightline.errors import ConfigError, FormatError, ImageError

_LOOK_AT_ROWS = 1000


class TableReader:
    """Reads a table twice: once for boxes and classes, grouped by image on disk, once for the images."""

    def __init__(
        self,
        table: Table,
        images: Folder | None,
        *,
        columns: dict[str, str] | None = None,
        classes: tuple[str, ...] | None = None,
        box_format: BoxFormat | None = None,
    ) -> None:
        self._table: Table | None = table
        self._images = images
        self._roles = Roles.find(table.columns, columns or {})
        self.task: Task = "detection" if self._roles.has_boxes else "classification"
        self.box_format = self._find_box_format(table, box_format)
        first_rows = islice(table.rows(self._roles.names("class", "boxes", "objects", *CORNERS)), _LOOK_AT_ROWS)
        self._one_row_an_image = any(self._roles.has_lists(row) for row in first_rows)
        self._boxes = _BoxStore()
        found = self._read_annotations(table)
        self.classes = classes or found
        if not self.classes:
            raise FormatError("the table has no class names: say --columns class=COLUMN")

    def __getstate__(self) -> dict[str, Any]:
        # A worker only loads; the table and the grouped boxes stay with the driver.
        return {"_images": self._images, "task": self.task, "classes": self.classes}

    @property
    def folders(self) -> tuple[Folder, ...]:
        """That of the images which the table names; annotations come with the entries."""
        return (self._images,) if self._images else ()

    def entries(self) -> Iterator[Entry | Reject]:
        """Each image once, in the order of its first row, with all of its boxes."""
        assert self._table is not None, "entries are listed by the driver only"
        labels = {name: index for index, name in enumerate(self.classes)}
        seen: dict[bytes, bytes] = {}
        wanted = self._roles.names("image", "path", "name", "split", "width", "height")
        for number, row in enumerate(self._table.rows(wanted)):
            key = self._key(row, number)
            digest, content = _digest(key), _digest(self._roles.picture(row)[0] or "")
            if digest not in seen:
                seen[digest] = content
                yield self._entry(key, row, number, labels)
            elif self._one_row_an_image:
                yield Reject(key, "list", "listed twice", f"row {number}", "skipped")
            elif content not in (seen[digest], _digest("")):
                yield Reject(key, "list", "rows of one name hold different images", f"row {number}", "noted")

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

    def _find_box_format(self, table: Table, given: BoxFormat | None) -> BoxFormat | None:
        """The layout of boxes without names; None if the table has none."""
        column = self._roles.box_column
        if column is None:
            if given is not None:
                raise ConfigError(
                    f"--box-format {given}: no column of this table holds boxes of four numbers; leave the option out, "
                    "or name the column with --columns boxes=COLUMN"
                )
            return None
        if given is not None:
            return given
        rows = table.rows(self._roles.names("boxes", "objects", "width", "height"))
        return decide_format(((box, self._size(row)) for row in rows for box in self._roles.boxes(row)), column)

    def _size(self, row: Row) -> tuple[int, int] | None:
        width, height = (whole(self._roles.value(row, role)) for role in ("width", "height"))
        return (width, height) if width and height else None

    def _entry(self, key: str, row: Row, number: int, labels: dict[str, int]) -> Entry | Reject:
        image, path = self._roles.picture(row)
        if image is None and path is None:
            return Reject(key, "read", "no image", f"row {number}: neither bytes nor text nor a path")
        boxes, classes, rejects = self._boxes.of(key, number if self._one_row_an_image else None, labels)
        label = None
        if self.task == "classification":
            if not classes:
                return Reject(key, "annotation", "unknown class", rejects[0].detail if rejects else f"row {number}")
            boxes, label = [], classes[0]
        payload = (image, path, self._size(row), boxes, label, rejects)
        return Entry(key, len(image) if image is not None else 0, self._split(row), payload)

    def _split(self, row: Row) -> str | None:
        split = self._roles.value(row, "split")
        return None if split is None else split_named(str(split)) or str(split)

    def _key(self, row: Row, number: int) -> str:
        """What tells one image from another: its name within its split, else its path, its content, or its row."""
        name, split = self._roles.value(row, "name"), self._split(row)
        if name is not None:
            return _clean(f"{split}/{name}" if split else str(name))
        image, path = self._roles.picture(row)
        path = self._roles.value(row, "path") or path
        if path is not None:
            return _clean(without_secrets(str(path)))
        if self._one_row_an_image or image is None:
            return f"row-{number}"
        return hashlib.sha256(image.encode() if isinstance(image, str) else image).hexdigest()

    def _read_annotations(self, table: Table) -> tuple[str, ...]:
        wanted = self._roles.names("name", "path", "split", "class", "boxes", "objects", "ignore", *CORNERS)
        if not {"name", "path"} <= set(self._roles.columns):
            wanted += self._roles.names("image")
        classes: set[str] = set()
        for number, row in enumerate(table.rows(wanted)):
            items = list(self._roles.items(row, self.box_format or "xyxy"))
            self._boxes.add(self._key(row, number), number, items)
            classes.update(label for label, _, _ in items if label is not None)
        self._boxes.finish()
        return tuple(sorted(classes, key=_class_rank))


class _BoxStore:
    """Boxes grouped by image in a temporary SQLite database: a file without a name, gone when it is closed."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)  # Any thread may collect it, and close it then.
        self._db.executescript(
            "pragma journal_mode=off; pragma synchronous=off;"
            "create table box (key text, row int, label text, x0, y0, x1, y1, ignore int, usable int);"
        )

    def __del__(self) -> None:
        self._db.close()

    def add(self, key: str, row: int, items: list[Item]) -> None:
        for label, box, ignore in items:
            values = (key, row, label, *(box or (None,) * 4), int(ignore), int(box is not None))
            self._db.execute("insert into box values (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def finish(self) -> None:
        self._db.execute("create index by_key on box (key)")

    def of(
        self, key: str, only_row: int | None, labels: dict[str, int]
    ) -> tuple[list[tuple[Any, ...]], list[int], list[Reject]]:
        """Raw boxes, labels of all objects, and objects without a usable class, of one image."""
        boxes, classes, rejects = [], [], []
        found = self._db.execute("select * from box where key = ? order by rowid", (key,))
        for _, row, label, *numbers, ignore, usable in found:
            where = f"row {row}"
            if only_row not in (None, row):
                continue
            if label not in labels:
                rejects.append(Reject(key, "annotation", "unknown class", f"{where}: {label!r}"[:200], "box rejected"))
                continue
            classes.append(labels[label])
            if usable:
                corners = [math.nan if value is None else value for value in numbers]
                boxes.append((*corners, labels[label], bool(ignore), where))
        return boxes, classes, rejects


def _clean(key: str) -> str:
    """A key that SQLite can hold."""
    return key.encode("utf-8", "backslashreplace").decode()


def _digest(value: bytes | str) -> bytes:
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).digest()[:16]


def _class_rank(name: str) -> tuple[bool, int, str]:
    """Numbers by value, then names by spelling."""
    is_number = name.isdecimal() and len(name) < 16
    return not is_number, int(name) if is_number else 0, name


def _image_bytes(image: bytes | str) -> bytes:
    if isinstance(image, bytes):
        return image
    text = image.partition(",")[2] if image.startswith("data:") else image
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("image text is not base64", repr(image[:40]), stage="decode") from None
