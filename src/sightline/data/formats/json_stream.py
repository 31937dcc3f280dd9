"""Items of one array of a large JSON file, without holding the file."""

import re
from collections.abc import Iterator
from typing import Any

import ijson

from sightline.data.storage import Folder
from sightline.errors import FormatError

_CHUNK_BYTES = 1 << 20
_NOT_JSON = re.compile(rb"(?<=[\[:,\s])(NaN|-?Infinity)(?=[\s,\]}])")
_LONGEST = len(b"-Infinity") + 1


def stream_items(folder: Folder, file: str, key: str) -> Iterator[Any]:
    """Yield the items of the top-level array `key`."""
    with folder.filesystem.open_input_stream(folder.full_path(file)) as stream:
        try:
            yield from ijson.items(_PlainJson(stream), f"{key}.item", use_float=True, buf_size=_CHUNK_BYTES)
        except (ijson.JSONError, UnicodeDecodeError, ValueError, OverflowError) as error:
            raise FormatError(
                f"{file!r} in {folder.location!r} is not valid JSON: {str(error).strip()[:200]}"
            ) from None


class _PlainJson:
    """A stream in which NaN and Infinity, which Python's json writes and JSON does not know, read as null."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = b""

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Some bytes; none at the end. Holds back what could be the beginning of a word that is cut."""
        if size == 0:
            return b""
        while True:
            chunk = bytes(self._stream.read(_CHUNK_BYTES))
            data = self._rest + chunk
            if not chunk:
                self._rest = b""
                return _NOT_JSON.sub(b"null", data)
            data = _NOT_JSON.sub(b"null", data)
            self._rest, data = data[-_LONGEST:], data[:-_LONGEST]
            if data:
                return data
