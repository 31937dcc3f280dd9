"""Annotations of a COCO file joined to their images on disk, so that memory stays bounded however large the file is."""

import math
import reprlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from sightline.data.record import Reject


class CocoJoin:
    """Images and annotations of one file in a temporary SQLite database, so that memory stays bounded."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("")  # A file without a name, gone when it is closed.
        self._db.executescript(
            "pragma journal_mode=off; pragma synchronous=off; pragma cache_size=-20000;"
            "create table image (id text primary key, name text, width int, height int);"
            "create table box (image text, number int, category, x, y, w, h, area, crowd int, ok int);"
        )

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def add_images(self, file: str, items: Iterable[Any]) -> Iterator[Reject]:
        """Take in the images of a file; those without a usable name or id come back."""
        for number, item in enumerate(items):
            where = f"{file} image {number}"
            row = _image_row(item)
            if row is None:
                yield Reject(where, "annotation", "image entry does not parse", reprlib.repr(item)[:200])
            elif self._db.execute("insert or ignore into image values (?, ?, ?, ?)", row).rowcount == 0:
                yield Reject(row[1], "annotation", "image id is taken", f"{where}: id {row[0]}"[:200])

    def add_annotations(self, items: Iterable[Any]) -> None:
        """Take in the annotations, in whatever order they come."""
        rows = (_box_row(part, number) for number, item in enumerate(items) for part in _segments(item))
        self._db.executemany("insert into box values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._db.execute("create index by_image on box (image)")

    def first_names(self, count: int) -> list[str]:
        """Names of the first images."""
        return [name for (name,) in self._db.execute("select name from image order by rowid limit ?", (count,))]

    def images(self) -> Iterator[tuple[tuple[str, int, int], list[tuple[Any, ...]]]]:
        """Each image, (name, width, height), with its annotations in the order of the file."""
        find = "select number, category, x, y, w, h, area, crowd, ok from box where image = ? order by number"
        for key, name, width, height in self._db.execute("select * from image order by rowid"):
            yield (name, width, height), self._db.execute(find, (key,)).fetchall()

    def orphans(self, file: str) -> Iterator[Reject]:
        """Annotations whose image the file does not have."""
        find = "select number, image from box where image is null or image not in (select id from image)"
        for number, key in self._db.execute(find):
            detail = f"annotation {number}: image id {key}"
            yield Reject(file, "annotation", "annotation of an unknown image", detail[:200], "box rejected")


def id_key(value: Any) -> str | None:
    """The text under which an id is stored; None if it is nothing that could be an id."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value) if isinstance(value, int | float | str) else None


def _image_row(item: Any) -> tuple[str, str, int, int] | None:
    if not isinstance(item, dict) or not isinstance(item.get("file_name"), str):
        return None
    key = id_key(item.get("id"))
    if key is None:
        return None
    sizes = [
        value if isinstance(value, int) and 0 < value < 1 << 31 else 0
        for value in (item.get("width"), item.get("height"))
    ]
    return key, item["file_name"].encode("utf-8", "replace").decode(), sizes[0], sizes[1]


def _segments(item: Any) -> list[Any]:
    """The annotations in an entry: itself, or the segments of an image in a panoptic file."""
    segments = item.get("segments_info") if isinstance(item, dict) else None
    if not isinstance(segments, list):
        return [item]
    return [{**part, "image_id": item.get("image_id")} if isinstance(part, dict) else part for part in segments]


def _box_row(item: Any, number: int) -> tuple[Any, ...]:
    """A row that always fits: whether it is usable is decided when its image is known."""
    if not isinstance(item, dict):
        return None, number, None, None, None, None, None, None, 0, 0
    box = item.get("bbox")
    usable = isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) or v is None for v in box)
    # SQLite has no NaN: it is NULL there.
    numbers = [None if v is None else float(v) for v in box] if usable and box else [None] * 4
    keys = id_key(item.get("image_id")), number, id_key(item.get("category_id"))
    return *keys, *numbers, _area(item.get("area")), int(bool(item.get("iscrowd"))), int(usable)


def _area(value: Any) -> float | None:
    """An area as COCO means it; None if it is nothing that could be one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value >= 0 else None
