"""Items of one array of a large JSON file, without holding the file."""

import re
from collections.abc import Iterator
from typing import Any

import ijson
import numpy as np

from sightline.data.disk import may_pass
from sightline.data.storage import Folder, read_failure
from sightline.errors import FormatError, SourceError

_CHUNK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_NOT_JSON = re.compile(rb"([\[:,]\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
_HELD_BACK = 64
_MAX_DEPTH = 100
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def stream_items(folder: Folder, file: str, key: str) -> Iterator[Any]:
    """Yield the items of the top-level array `key`."""
    try:
        with folder.filesystem.open_input_stream(folder.full_path(file)) as stream:
            yield from ijson.items(_PlainJson(stream), f"{key}.item", use_float=True, buf_size=_CHUNK_BYTES)
    except (ijson.JSONError, ValueError, OverflowError, OSError) as error:
        refuse_failing_source(error, folder, file)
        reason = " ".join(str(error).split())[:200]
        raise FormatError(f"{file!r} in {folder.location!r} cannot be read as JSON: {reason}") from None


def refuse_failing_source(error: Exception, folder: Folder, file: str) -> None:
    """Raise SourceError for a disk or bucket that cannot be read, which says nothing about what the file holds."""
    if not isinstance(error, OSError) or (folder.is_local and not may_pass(error)):
        return
    failure = read_failure(f"{folder.location}/{file}", error)
    if isinstance(failure, SourceError):
        raise failure from None


class _PlainJson:
    """A stream in which NaN and Infinity, which Python's json writes and JSON does not know, read as null."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._rest = b""
        self._depth = _Depth()

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Some bytes; none at the end. Holds back what could be the beginning of a word that is cut."""
        if size == 0:
            return b""
        while True:
            chunk = bytes(self._stream.read(_CHUNK_BYTES))
            self._depth.check(chunk)
            data = (self._rest + chunk).removeprefix(_BOM)
            if b"NaN" in data or b"Infinity" in data:
                data = _NOT_JSON.sub(rb"\1null", data)
            if not chunk:
                self._rest = b""
                return data
            self._rest, data = data[-_HELD_BACK:], data[:-_HELD_BACK]
            if data:
                return data


class _Depth:
    """Refuses nesting so deep that the parser, which remembers the path to every level, would fill the memory."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._rest = b""

    def check(self, chunk: bytes) -> None:
        data = _ESCAPE.sub(b"", self._rest + chunk)
        self._rest = b"\\" if data.endswith(b"\\") else b""
        parts = data.split(b'"')
        brackets = b"".join(parts[self._in_string :: 2]).translate(None, _NO_BRACKETS)
        self._in_string ^= len(parts) % 2 == 0
        if brackets:
            steps = np.frombuffer(brackets, np.uint8)
            depths = self._depth + np.cumsum(np.where((steps == ord("[")) | (steps == ord("{")), 1, -1))
            self._depth = int(depths[-1])
            if depths.max() > _MAX_DEPTH:
                raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
