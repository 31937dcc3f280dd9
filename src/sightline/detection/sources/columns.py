"""Which columns of a table hold the image, its path, and what tells rows apart."""

import datetime
import decimal
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sightline.config import SourceConfig
from sightline.data.disk import MAX_FILE_BYTES
from sightline.data.formats.table import _image_bytes
from sightline.data.formats.table_cells import ALIASES
from sightline.detection.sources.names import open_folder
from sightline.errors import ConfigError, FormatError, ImageError

ROW_NUMBER = "row number"
"""A value of `source.key` for table files that no column tells the rows of apart."""


def settings_text(config: SourceConfig, *names: str) -> list[str]:
    """The settings that choose rows and columns, as they stand in the name of a source; paths are absolute."""
    root = [f"root {open_folder(config.root)[1]}"] if config.root else []
    return [*(f"{name} {value}" for name in names if (value := getattr(config, name))), *root]


@dataclass(frozen=True, slots=True)
class Columns:
    """Either `image` or `path` is given.

    Attributes:
        image: The column with bytes or base64.
        path: The column with paths or URLs.
        key: The column that tells rows apart, no two of which have the same value; without one, the path or the row's
            number does.
    """

    image: str | None
    path: str | None
    key: str | None

    @classmethod
    def find(
        cls,
        names: list[str],
        config: SourceConfig,
        *,
        where: str,
        holds_images: Callable[[str], bool],
        numbered: bool = False,
    ) -> "Columns":
        """By what the settings say, else by usual names in any case.

        Args:
            names: All columns.
            where: The table, for messages.
            holds_images: Whether a column's values could be images, rather than their paths or something else.
            numbered: Whether `source.key` may be the row's number.
        """
        by_number = numbered and config.key == ROW_NUMBER and ROW_NUMBER not in names
        config = config.model_copy(update={"key": None}) if by_number else config
        for setting, column in (("image", config.image), ("path", config.path), ("key", config.key)):
            if column is not None and column not in names:
                raise ConfigError(f"source.{setting} = {column!r}: {where} has {', '.join(names)}")
        image, path = config.image, config.path
        if image and path:
            raise ConfigError(f"source.image = {image!r} and source.path = {path!r}: an image comes from one of them")
        if not image and not path:
            usual = _usual("image", names)
            image = next((name for name in usual if holds_images(name)), None)
            # A column "image" often holds the names of files.
            path = next(iter([*_usual("path", names), *usual]), None) if image is None else None
        if not image and not path:
            raise FormatError(
                f"no column with images or paths among {', '.join(names)} of {where}: say source.image = COLUMN "
                "or source.path = COLUMN"
            )
        others = [] if path or by_number else [*_usual("name", names), *_usual("path", names)]
        return cls(image, path, config.key or next((name for name in others if name != image), None))


def _usual(role: str, names: list[str]) -> list[str]:
    lower = {name.lower(): name for name in names}
    return [lower[alias] for alias in ALIASES[role] if alias in lower]


def key_text(value: Any) -> str | None:
    r"""A key as text; None if there is none.

    >>> key_text(7), key_text(b"\x00\xff")
    ('7', '00ff')
    """
    if value is None or value == "":
        return None
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


_KINDS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
}


def key_to_json(value: Any) -> Any:
    """A key as JSON can hold it, from which `key_from_json` makes the same value."""
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    for kind, (types, write, _) in _KINDS.items():
        if isinstance(value, types):
            return [kind, write(value)]
    return value if isinstance(value, str | int | float) or value is None else str(value)


def key_from_json(value: Any) -> Any:
    """The key that `key_to_json` wrote."""
    return _KINDS[value[0]][2](value[1]) if isinstance(value, list) else value


def image_of(cell: Any, where: str) -> bytes:
    """The encoded image in a cell: bytes, or base64."""
    if isinstance(cell, bytearray | memoryview):
        cell = bytes(cell)
    if not isinstance(cell, bytes | str) or not cell:
        kind = "empty" if not cell else f"a {type(cell).__name__}"
        raise ImageError("no image", f"the cell of {where} is {kind}"[:300])
    if len(cell) > 2 * MAX_FILE_BYTES:
        raise ImageError("file not readable", f"it has {len(cell)} bytes, more than {MAX_FILE_BYTES}", stage="path")
    return _image_bytes(cell)
