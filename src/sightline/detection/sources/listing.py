"""Images that are listed: paths and URLs of a Python list, or of a text file with one a line."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sightline.detection.item import Item
from sightline.detection.sources.names import open_folder, shown
from sightline.detection.sources.paths import PathReader, is_seen, split_file
from sightline.detection.sources.source_file import SourceFile
from sightline.errors import ConfigError, FormatError

SUFFIXES = (".txt", ".lst")
_LONGEST_LINE_BYTES = 1 << 16


class ListSource:
    """Paths and URLs, taken as they are; relative ones begin at a root, else at the working directory."""

    def __init__(self, paths: Sequence[str | Path], root: str | None = None) -> None:
        if not paths:
            raise ConfigError("the list of images is empty: name at least one path or URL")
        self._texts = [str(path) for path in paths]
        self._reader = PathReader(root or ".")

    @cached_property
    def name(self) -> str:
        """The one image, or a hash of all."""
        if len(self._texts) == 1:
            return self._reader.item(self._texts[0]).uri
        digest = hashlib.blake2b(digest_size=16)
        for text in self._texts:
            digest.update(self._reader.item(text).image_id.encode())
        return f"list of {len(self._texts)} images, {digest.hexdigest()}"

    def items(self) -> Iterator[Item]:
        """In the order of the list."""
        return self._reader.with_versions(self._reader.item(text) for text in self._texts)

    def read(self, item: Item) -> bytes:
        """The bytes of a local file or an object in a bucket."""
        return self._reader.read(item)

    def is_visible(self) -> bool:
        """Whether the place of the first local path is there."""
        return is_seen(self._place)

    def __getstate__(self) -> dict[str, Any]:
        # A worker reads by what an item says: the list stays with the driver.
        return {"name": self.name, "_place": self._place, "_reader": self._reader, "_texts": []}

    @cached_property
    def _place(self) -> str | None:
        return self._reader.visible_place(self._texts)


class ListFileSource:
    """A text file with a path or URL on each line; blank lines and those that begin with # are left out."""

    def __init__(self, location: str, root: str | None = None) -> None:
        self._list = SourceFile.at(location)
        self._reader = PathReader(root or split_file(location)[0])
        self.name = shown(self._list.public + (f" from {open_folder(root)[1]}" if root else ""))

    def items(self) -> Iterator[Item]:
        """In the order of the lines."""
        return self._reader.with_versions(self._reader.item(text) for text in self._lines())

    def read(self, item: Item) -> bytes:
        """The bytes of a local file or an object in a bucket."""
        return self._reader.read(item)

    def is_visible(self) -> bool:
        """Whether the place of the first local path is there; the list itself is not needed to read."""
        return is_seen(self._place)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_place": self._place}

    @cached_property
    def _place(self) -> str | None:
        return self._reader.visible_place(self._lines())

    def _lines(self) -> Iterator[str]:
        with self._list.stream(buffer_bytes=_LONGEST_LINE_BYTES) as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE_BYTES), b""), 1):
                if len(line) == _LONGEST_LINE_BYTES:
                    raise FormatError(f"line {number} of {self.name!r} has no end: a list has one path or URL a line")
                text = line.decode("utf-8", "surrogateescape")
                text = (text.removeprefix("\ufeff") if number == 1 else text).strip(" \t\r\n")
                if text and not text.startswith("#"):
                    yield text
