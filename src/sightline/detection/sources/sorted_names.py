"""Names in order, however many: those that do not fit in memory are sorted in runs on the disk and merged."""

import heapq
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO

_RUN_NAMES = 1 << 17
_READ_BYTES = 1 << 15
_SEPARATOR, _END = "\0", "/"
"""No name has the second, and no note either; the first is less than any letter, so that entries are in the order of
their names."""


class SortedNames:
    """Names of a directory, each with a note that says what it is.

    Runs lie one behind the other in a file without a name, which is gone with this object.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._file: IO[bytes] | None = None
        self._ends: list[int] = []

    def add(self, name: str, note: str) -> None:
        """One more, before the first is asked for."""
        self._names.append(name + _SEPARATOR + note)  # A pair would take twice the memory.
        if len(self._names) >= _RUN_NAMES:
            self._write_run()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Name and note, in the order of the names."""
        runs = [self._read_run(start, end) for start, end in zip([0, *self._ends], self._ends, strict=False)]
        self._names.sort()
        for entry in heapq.merge(*runs, self._names) if runs else self._names:
            name, _, note = entry.rpartition(_SEPARATOR)
            yield name, note

    def _write_run(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        self._names.sort()
        for entry in self._names:
            self._file.write(os.fsencode(entry + _END))
        self._file.flush()
        self._ends.append(self._file.tell())
        self._names = []

    def _read_run(self, start: int, end: int) -> Iterator[str]:
        assert self._file is not None
        rest = b""
        while start < end:
            data = os.pread(self._file.fileno(), min(_READ_BYTES, end - start), start)
            start += len(data)
            *whole, rest = (rest + data).split(_END.encode())
            yield from map(os.fsdecode, whole)
