"""Rows of a table, streamed: Parquet, Arrow, CSV and JSON lines files, or a SQL query."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.data.plain_types import plain_batches
from sightline.data.storage import Folder
from sightline.errors import FormatError, MissingExtraError, StorageError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

SUFFIXES = (".parquet", ".arrow", ".feather", ".csv", ".jsonl", ".ndjson")
_BATCH_ROWS = 64
_UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError)
_LONGEST_LINE_BYTES = 32 << 20
Row = dict[str, Any]


class Table(Protocol):
    """A table that can be read more than once, a few rows at a time."""

    @property
    def columns(self) -> list[str]:
        """Column names."""
        ...

    def rows(self, columns: list[str]) -> Iterator[Row]:
        """Rows with these columns only, always in the same order."""
        ...


class FileTable:
    """One or several files of one kind in a folder."""

    def __init__(self, folder: Folder, files: list[str]) -> None:
        kinds = {posixpath.splitext(file)[1].lower() for file in files}
        if len(kinds) != 1:
            raise FormatError(f"tables of different kinds in {folder.location!r}: {', '.join(sorted(kinds))}")
        self._folder, self._files, self._kind = folder, files, kinds.pop()

    @property
    def columns(self) -> list[str]:
        """Column names of the first file."""
        try:
            return _names(self._dataset(self._files[0], _file_format(self._kind)))
        except _UNREADABLE as error:
            raise FormatError(f"{self._files[0]!r} cannot be read as a table: {error}") from None

    def rows(self, columns: list[str]) -> Iterator[Row]:
        """Rows of every file in turn."""
        for file in self._files:
            try:
                for batch in plain_batches(self._batches(file, columns)):
                    yield from batch.to_pylist()
            except _UNREADABLE as error:
                raise FormatError(f"{file!r} in {self._folder.location!r} cannot be read as a table: {error}") from None

    def _batches(self, file: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self._kind != ".parquet":
            dataset = self._dataset(file, _file_format(self._kind))
            if self._kind == ".csv":
                dataset = self._dataset(file, _csv_format(_names(dataset)))
            yield from dataset.to_batches(columns=columns, batch_size=_BATCH_ROWS, batch_readahead=2)
            return
        path = self._folder.full_path(file)
        # ParquetFile streams within row groups; a table written in one piece has a single huge one.
        with pq.ParquetFile(path, filesystem=self._folder.filesystem, buffer_size=1 << 20) as parquet:
            yield from parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns)

    def _dataset(self, file: str, file_format: "ds.FileFormat") -> "ds.Dataset":
        import pyarrow.dataset as ds  # Slow to import: it brings pandas along where that is installed.

        return ds.dataset(self._folder.full_path(file), filesystem=self._folder.filesystem, format=file_format)


def _names(dataset: "ds.Dataset") -> list[str]:
    return list(dataset.schema.names)


def _file_format(kind: str) -> "ds.FileFormat":
    import pyarrow.dataset as ds  # Slow to import: it brings pandas along where that is installed.
    from pyarrow import json

    match kind:
        case ".parquet":
            return ds.ParquetFileFormat()
        case ".arrow" | ".feather":
            return ds.IpcFileFormat()
        case ".csv":
            return _csv_format([])
        case _:
            return ds.JsonFileFormat(read_options=json.ReadOptions(block_size=_LONGEST_LINE_BYTES))


def _csv_format(columns: list[str]) -> "ds.FileFormat":
    """These columns as text: a guessed type would turn "007" into 7, "NA" into nothing, and fail where it changes."""
    import pyarrow.dataset as ds  # Slow to import: it brings pandas along where that is installed.
    from pyarrow import csv

    return ds.CsvFileFormat(
        parse_options=csv.ParseOptions(newlines_in_values=True),
        read_options=csv.ReadOptions(block_size=_LONGEST_LINE_BYTES),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), null_values=[""], strings_can_be_null=True
        ),
    )


@dataclass(frozen=True)
class QueryTable:
    """The rows of a SQL query; run again for each reading, so it should order its rows."""

    url: str
    query: str

    @property
    def columns(self) -> list[str]:
        """Column names of the result."""
        with self._run() as result:
            return list(result.keys())

    def rows(self, columns: list[str]) -> Iterator[Row]:
        """Rows as the database streams them."""
        with self._run() as result:
            for row in result.mappings():
                yield {name: row[name] for name in columns}

    def _run(self) -> Any:
        return _open_query(self.url, self.query)


def _open_query(url: str, query: str) -> Any:
    from contextlib import contextmanager

    try:
        import sqlalchemy
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise MissingExtraError("SQLAlchemy", "sql") from None

    @contextmanager
    def run() -> Iterator[Any]:
        try:
            engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
            with (
                engine.connect().execution_options(stream_results=True, yield_per=_BATCH_ROWS) as connection,
                connection.execute(sqlalchemy.text(query)) as result,
            ):
                yield result
        except (SQLAlchemyError, ImportError) as error:
            message = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise StorageError(f"the database refused: {message}") from None

    return run()


def find_tables(folder: Folder) -> list[str]:
    """Table files directly in a folder, sorted."""
    return [name for name, is_folder in folder.names() if not is_folder and name.lower().endswith(SUFFIXES)]
