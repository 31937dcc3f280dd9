"""Parquet and Arrow files: columns of a part at a time, and single rows again with a few parts kept in memory."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.data.plain_types import plain_batches
from sightline.data.position_reader import PositionReader
from sightline.detection.sources.source_file import SourceFile
from sightline.errors import ImageError, SourceError

SUFFIXES = (".parquet", ".arrow", ".feather")
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)
"""What a file that is no table, or a damaged one, makes its reader raise; one that cannot be read, SourceError."""

_WINDOW_BYTES = 8 << 20
_NUM_WINDOWS = 16
_KEPT_BYTES = 128 << 20
_NUM_CURSORS = 2
_OPEN_FILES = 8


class TableFile(Protocol):
    """A file of rows in groups."""

    schema: pa.Schema
    num_groups: int

    def num_rows(self, group: int) -> int:
        """How many rows a group has."""
        ...

    def batches(self, group: int, columns: list[str], *, bounded: bool = False) -> Iterator[pa.RecordBatch]:
        """Some columns of a group in order; if bounded, in batches of some megabytes rather than many rows."""
        ...


class ParquetTable:
    """A Parquet file; pages are read as they are needed, for a table written in one piece is a single row group."""

    def __init__(self, file: Any) -> None:
        self._parquet = pq.ParquetFile(file, buffer_size=1 << 20)
        self.schema = self._parquet.schema_arrow
        self.num_groups = self._parquet.num_row_groups

    def num_rows(self, group: int) -> int:
        """From the footer."""
        return int(self._parquet.metadata.row_group(group).num_rows)

    def batches(self, group: int, columns: list[str], *, bounded: bool = False) -> Iterator[pa.RecordBatch]:
        """Streamed within the group."""
        rows = self._window_rows(group, columns) if bounded else 1 << 14
        yield from plain_batches(self._parquet.iter_batches(batch_size=rows, row_groups=[group], columns=columns))

    def _window_rows(self, group: int, columns: list[str]) -> int:
        info = self._parquet.metadata.row_group(group)
        chunks = [info.column(number) for number in range(info.num_columns)]
        begins = tuple(f"{name}." for name in columns)
        size = sum(c.total_uncompressed_size for c in chunks if f"{c.path_in_schema}.".startswith(begins))
        return max(1, min(1024, _WINDOW_BYTES * int(info.num_rows) // max(int(size), 1)))


class IpcTable:
    """An Arrow file, of which only the columns that are asked for are read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        reader = pa.ipc.open_file(file)
        self.schema, self.num_groups = reader.schema, reader.num_record_batches
        self._readers: dict[tuple[str, ...], Any] = {}

    def num_rows(self, group: int) -> int:
        """From the batch, for the footer does not tell; the narrowest column is taken."""
        plain = [field.name for field in self.schema if pa.types.is_primitive(field.type)]
        names = plain[:1] or self.schema.names[-1:]
        return sum(batch.num_rows for batch in self.batches(group, names))

    def batches(self, group: int, columns: list[str], *, bounded: bool = False) -> Iterator[pa.RecordBatch]:
        """The one batch, checked, for its offsets come from the file as they are."""
        names = tuple(sorted(set(columns)))
        if names not in self._readers:
            fields = [self.schema.get_field_index(name) for name in names]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            self._readers[names] = pa.ipc.open_file(self._file, options=options)
        batch = self._readers[names].get_batch(group)
        batch.validate(full=True)
        yield from plain_batches([batch])


def open_table(file: PositionReader, name: str) -> TableFile:
    """Open a file by the suffix of its name."""
    return ParquetTable(file) if name.lower().endswith(".parquet") else IpcTable(file)


@dataclass
class _Cursor:
    """A group that is being read from front to back."""

    place: tuple[str, int]
    batches: Iterator[pa.RecordBatch]
    next_row: int = 0


class RowReader:
    """Rows by file, group and number, asked for by several threads nearly in order.

    Groups may be larger than memory, so a group is read forwards in windows, of which the last ones are kept.

    Args:
        find: The file of a name.
    """

    def __init__(self, find: Callable[[str], SourceFile], columns: list[str]) -> None:
        self._find, self._columns = find, columns
        self._lock = threading.Lock()
        self._files: OrderedDict[str, TableFile] = OrderedDict()
        self._windows: deque[tuple[tuple[str, int], int, pa.RecordBatch]] = deque(maxlen=_NUM_WINDOWS)
        self._cursors: deque[_Cursor] = deque(maxlen=_NUM_CURSORS)

    def row(self, file: str, group: int, row: int) -> dict[str, Any]:
        """The cells of a row."""
        with self._lock:
            try:
                batch, number = self._kept((file, group), row) or self._advanced((file, group), row)
                return {name: batch.column(name)[number].as_py() for name in self._columns}
            except SourceError:
                self._files.clear()
                self._cursors.clear()
                raise
            except UNREADABLE as error:
                self._cursors.clear()
                detail = f"row {row} of group {group} in {file!r}: {error}"
                raise ImageError("table not readable", detail[:300], stage="read") from None

    def _kept(self, place: tuple[str, int], row: int) -> tuple[pa.RecordBatch, int] | None:
        for other, start, batch in self._windows:
            if other == place and start <= row < start + batch.num_rows:
                return batch, row - start
        return None

    def _advanced(self, place: tuple[str, int], row: int) -> tuple[pa.RecordBatch, int]:
        cursor = self._cursor(place, row)
        for batch in cursor.batches:
            start = cursor.next_row
            cursor.next_row += batch.num_rows
            self._keep(place, start, batch)
            if row < cursor.next_row:
                return batch, row - start
        raise IndexError(f"it has {cursor.next_row} rows: the table was changed")

    def _keep(self, place: tuple[str, int], start: int, batch: pa.RecordBatch) -> None:
        self._windows.append((place, start, batch))
        while len(self._windows) > 1 and sum(kept.nbytes for *_, kept in self._windows) > _KEPT_BYTES:
            self._windows.popleft()

    def _cursor(self, place: tuple[str, int], row: int) -> _Cursor:
        before = [cursor for cursor in self._cursors if cursor.place == place and cursor.next_row <= row]
        if before:
            return max(before, key=lambda cursor: cursor.next_row)
        file, group = place
        cursor = _Cursor(place, self._table(file).batches(group, self._columns, bounded=True))
        self._cursors.append(cursor)
        return cursor

    def _table(self, file: str) -> TableFile:
        if file not in self._files:
            self._files[file] = open_table(self._find(file).reader(patient=False), file)
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        self._files.move_to_end(file)
        return self._files[file]
