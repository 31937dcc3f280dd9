"""A DuckDB file as a database of detections.

DuckDB lets one process at a time into a file. It is opened for a transaction and closed after it, so that other runs
and readers get their turns.
"""

import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sightline.data.disk import make_directory, may_pass, says_it_may_pass
from sightline.detection.schema import BOX, DETECTIONS
from sightline.detection.targets.connector import Collision, Query, Unreachable
from sightline.detection.targets.reader import SCALARS, ResultsOf, Views, sql_name, sql_text
from sightline.detection.trust import is_trusted
from sightline.errors import ExistsError, SightlineError, StorageError
from sightline.secrets import redact
from sightline.workspace import Workspace

_PARAMETER = re.compile(r'"(?:[^"]|"")*"|:(\w+)')
"""A quoted name, which is left alone, or a parameter."""
_TYPES = {
    pa.string(): "varchar",
    pa.int32(): "integer",
    pa.float32(): "real",
    pa.float64(): "double",
    pa.binary(): "blob",
}
_ARRIVING = "sightline arriving rows"
_LONGEST_PAUSE_S = 0.25
_LOCKS: dict[Path, threading.Lock] = {}
"""One for each file: DuckDB shares its state between the connections of a process, and is not safe while it opens."""


class DuckDBFile:
    """A connector to one file; several threads may use it.

    Args:
        file: Made, with its folder, if it is not there.
        patience_s: How long to wait while other processes have the file open.
    """

    page_rows = 100_000  # A page is a scan of the table: few large ones cost less.
    has_index = False
    reserved: frozenset[str] = frozenset()

    def __init__(self, file: Path, *, patience_s: float = 60.0) -> None:
        self.location = str(file)
        self._file, self._patience_s = file, patience_s
        self._lock = _LOCKS.setdefault(file.resolve(), threading.Lock())

    def quote(self, name: str) -> str:
        """In double quotes."""
        return '"' + name.replace('"', '""') + '"'

    def sql_type(self, kind: pa.DataType, *, is_key: bool) -> str:
        """The same for keys."""
        return _TYPES[kind]

    @contextmanager
    def transaction(self) -> Iterator["_Transaction"]:
        """Open the file, commit or roll back, and close it."""
        with self._lock, self._explained():
            connection = self._connect()
            try:
                connection.begin()
                yield _Transaction(connection)
                connection.commit()
            except BaseException:
                with suppress(duckdb.Error):  # A commit that failed has ended the transaction.
                    connection.rollback()
                raise
            finally:
                connection.close()

    def close(self) -> None:
        """Nothing is open between transactions."""

    def _connect(self) -> duckdb.DuckDBPyConnection:
        make_directory(self._file.parent)
        deadline, pause_s = time.monotonic() + self._patience_s, 0.01
        while True:
            try:
                return duckdb.connect(self.location)
            except duckdb.Error as error:
                if not _is_busy(error):
                    raise
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"{self.location!r} has been in use for {self._patience_s:g} s ({_line(error)}): close the "
                        "program that has it open and run again, or write to another file or to PostgreSQL"
                    ) from None
            time.sleep(random.uniform(0.5, 1) * pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SightlineError:
            raise
        except (duckdb.IntegrityError, duckdb.TransactionException) as error:
            raise Collision(f"{self.location!r} has such a row already, or changed meanwhile: {_line(error)}") from None
        except (duckdb.Error, OSError) as error:
            if "not a valid DuckDB" in str(error):
                raise ExistsError(f"{self.location!r} is not a DuckDB file: choose another name") from None
            kind = Unreachable if may_pass(error) or says_it_may_pass(str(error)) else StorageError
            raise kind(f"DuckDB refused {self.location!r}: {_line(error)}; check disk and rights") from None


class _Transaction:
    """What can be done between begin and commit."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def now(self) -> float:
        """Of this machine: DuckDB has no other."""
        return time.time()

    def columns(self, name: str) -> set[str] | None:
        """Names are compared as DuckDB does, which ignores case."""
        sql = (
            "select column_name from duckdb_columns() where lower(table_name) = lower(:name) "
            "and schema_name = current_schema() and database_name = current_database()"
        )
        return {column for (column,) in self.execute(sql, name=name)} or None

    def execute(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(_with_dollars(sql), values).fetchall()

    def change(self, sql: str, **values: Any) -> int:
        return int(self.execute(sql, **values)[0][0])

    def insert(self, table: str, rows: pa.Table) -> None:
        names = ", ".join(rows.column_names)
        self._connection.register(_ARRIVING, rows)
        self._connection.execute(f'insert into {table} ({names}) select {names} from "{_ARRIVING}"')
        self._connection.unregister(_ARRIVING)

    def select(self, query: Query, **values: Any) -> pa.Table:
        limit = "" if query.limit is None else f" limit {query.limit}"
        sql = (
            f"select {', '.join(query.columns.names)} from {query.table} "
            f"where {query.where} order by {query.order}{limit}"
        )
        return self._connection.sql(_with_dollars(sql), params=values).to_arrow_table().cast(query.columns)


def _with_dollars(sql: str) -> str:
    return _PARAMETER.sub(lambda match: f"${match[1]}" if match[1] else match[0], sql)


def _is_busy(error: duckdb.Error) -> bool:
    """Whether another process has the file, or this one has it open for reading only."""
    text = str(error)
    return "lock on file" in text or "being used by another process" in text or "different configuration" in text


def _line(error: Exception) -> str:
    return redact(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)


class DuckDBReader:
    """Reads a file, which is closed to writers while it is attached."""

    is_shared = False

    def __init__(self, results: ResultsOf) -> None:
        self._results, self._file = results, results.target

    def obstacle(self, workspace: Workspace) -> str:
        """See `Reader.obstacle`."""
        if is_trusted(self._file, workspace):
            return ""
        return (
            f"the rows of {self._results.name!r} are in {self._file!r}, a database outside the workspace that you have "
            f"not confirmed: if you know this file, run `sightline query SQL --job {self._results.name} --trust` once"
        )

    def has_rows(self) -> bool:
        """See `Reader.has_rows`."""
        return Path(self._file).is_file()

    def attach(self, database: duckdb.DuckDBPyConnection, *, restricted: bool) -> Views:
        """See `Reader.attach`."""
        database.execute(f"attach if not exists {sql_text(self._file)} as {sql_name(self._file)} (read_only)")
        images, detections = self._table("images"), self._table("detections")
        fields = ", ".join(f"{field.name} := {field.name}" for field in BOX)
        boxes = f"(select image_id, list(struct_pack({fields})) as boxes from {detections} group by 1)"
        return Views(
            images=f"select {', '.join(SCALARS)} from {images}",
            detections=f"select {', '.join(DETECTIONS.names)} from {detections}",
            rows=f"select i.{', i.'.join(SCALARS)}, coalesce(b.boxes, []) as boxes, '' as filename "
            f"from {images} i left join {boxes} b using (image_id)",
        )

    def rows_in(self, files: Sequence[str]) -> str | None:
        """See `Reader.rows_in`."""
        return None

    def _table(self, name: str) -> str:
        table = f"{sql_name(self._file)}.main.{sql_name(self._results.prefix + name)}"
        return f"(select * from {table} where job = {sql_text(self._results.job)})"
