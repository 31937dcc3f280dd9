"""Which column of a table plays which part, and what its cells mean."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sightline.config import BoxFormat
from sightline.data.formats.layout import class_name, is_image
from sightline.data.formats.table_boxes import NAMED_SIDES, box_to_xyxy, is_unnamed, number
from sightline.data.formats.table_rows import Row
from sightline.errors import ConfigError, FormatError

CORNERS = ("xmin", "ymin", "xmax", "ymax")
ALIASES: dict[str, tuple[str, ...]] = {
    "image": ("image", "image_data", "image_bytes", "image_base64", "img", "data", "content", "bytes"),
    "path": ("path", "image_path", "file_path", "relative_path", "uri"),
    "name": ("file_name", "filename", "image_name", "image_id", "name"),
    "split": ("split", "subset", "partition"),
    "class": ("class", "class_name", "label", "label_name", "category", "classes", "labels", "category_id"),
    **dict(zip(CORNERS, NAMED_SIDES["xyxy"], strict=True)),
    "boxes": ("boxes", "bboxes", "bbox"),
    "objects": ("objects",),
    "ignore": ("ignore", "difficult", "iscrowd"),
    "width": ("width", "image_width"),
    "height": ("height", "image_height"),
}
_FALSE = ("", "0", "0.0", "f", "false", "n", "no")

Item = tuple[str | None, list[float] | None, bool]
"""Class, xyxy and whether to ignore it."""


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
    def box_column(self) -> str | None:
        """The column that holds boxes of four numbers, if any does."""
        return self.columns.get("boxes") or self.columns.get("objects")

    @property
    def has_boxes(self) -> bool:
        """Whether any column holds boxes."""
        return self.box_column is not None or all(corner in self.columns for corner in CORNERS)

    def names(self, *roles: str) -> list[str]:
        """The columns that play these parts."""
        return [self.columns[role] for role in roles if role in self.columns]

    def value(self, row: Row, role: str) -> Any:
        """The value of a role in a row; None if no column plays it, or if the cell is empty."""
        column = self.columns.get(role)
        value = row.get(column) if column else None
        return None if value == "" or (isinstance(value, float) and math.isnan(value)) else value

    def picture(self, row: Row) -> tuple[bytes | str | None, str | None]:
        """The encoded image or its base64 text, and the path of a file if there is none."""
        image, path = self.value(row, "image"), self.value(row, "path")
        if isinstance(image, dict):  # Hugging Face's layout
            path = image.get("path") or path
            image = image.get("bytes")
        if isinstance(image, str) and is_image(image):
            image, path = None, image
        if isinstance(image, bytearray | memoryview):
            image = bytes(image)
        found = image if isinstance(image, bytes | str) else None
        return found, path if found is None and isinstance(path, str) else None

    def has_lists(self, row: Row) -> bool:
        """Whether a row lists several objects rather than holding one."""
        boxes = _parsed(self.value(row, "boxes"))
        if "objects" in self.columns or (isinstance(boxes, list | tuple) and not is_unnamed(boxes)):
            return True
        cells = (self.value(row, role) for role in ("class", *CORNERS))
        return any(isinstance(_parsed(cell), list | tuple) for cell in cells)

    def items(self, row: Row, box_format: BoxFormat = "xyxy") -> Iterator[Item]:
        """The objects in a row; an image without objects gives none."""
        classes, ignores = _as_list(self.value(row, "class")), _as_list(self.value(row, "ignore"))
        if not self.has_boxes:
            yield class_name(classes[0]) if classes else None, None, False
            return
        if self.box_column is not None and "boxes" not in self.columns:
            objects = _objects(self.value(row, "objects"))
            classes, ignores = ([_named(item, role) for item in objects] for role in ("class", "ignore"))
        for index, box in enumerate(self.boxes(row)):
            label = classes[index] if index < len(classes) else None
            ignore = index < len(ignores) and flag(ignores[index])
            yield class_name(label), box_to_xyxy(box, box_format), ignore

    def boxes(self, row: Row) -> list[Any]:
        """The boxes in a row as the table has them: four numbers, or numbers with names."""
        if "boxes" in self.columns:
            boxes = _parsed(self.value(row, "boxes"))
            return [] if boxes is None else [boxes] if is_unnamed(boxes) else [_parsed(box) for box in _as_list(boxes)]
        if "objects" in self.columns:
            return [_parsed(_named(item, "boxes")) for item in _objects(self.value(row, "objects"))]
        columns = [_as_list(self.value(row, corner)) for corner in CORNERS]
        if all(column in ([None], []) for column in columns):
            return []
        if len({len(column) for column in columns}) > 1:
            return [[]]
        return [dict(zip(CORNERS, box, strict=True)) for box in zip(*columns, strict=True)]


def flag(value: Any) -> bool:
    """A cell as yes or no."""
    return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)


def whole(value: Any) -> int:
    """A cell as the length of a side; 0 if it is none."""
    found = number(value)
    return int(found) if 0 < found < 1 << 31 and found == int(found) else 0


def _parsed(value: Any) -> Any:
    """Lists and structs often come as text."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _as_list(value: Any) -> list[Any]:
    value = _parsed(value)
    return list(value) if isinstance(value, list | tuple) else [value]


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of an image, as Hugging Face stores them: a list of structs, or a struct of lists."""
    value = _parsed(value)
    if isinstance(value, dict):
        columns = {key: column for key, column in value.items() if isinstance(column, list | tuple)}
        count = max(map(len, columns.values()), default=0)
        return [{key: column[i] for key, column in columns.items() if i < len(column)} for i in range(count)]
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list | tuple) else []


def _named(item: dict[str, Any], role: str) -> Any:
    """The field of an object that plays a part."""
    lower = {str(key).lower(): value for key, value in item.items()}
    return next((lower[alias] for alias in ALIASES[role] if lower.get(alias) is not None), None)
