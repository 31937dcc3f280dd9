"""Any database that SQLAlchemy reaches, for detections: PostgreSQL, SQLite and others."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from sightline.data.disk import make_directory
from sightline.data.location import without_secrets
from sightline.detection.targets.connector import Collision, Query, Unreachable
from sightline.detection.targets.reader import ResultsOf, Views
from sightline.errors import ConfigError, ExistsError, MissingExtraError, StorageError
from sightline.secrets import HIDDEN, looks_secret, redact
from sightline.workspace import Workspace

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.types import TypeEngine

_ROWS_AT_ONCE = 5_000
_LOST_STATES = ("23505", "40001", "40P01", "42701", "42710", "42P07", "55P03")
"""SQLSTATE of transactions that lost against another: key, serialization, deadlock, column, index, table, lock timeout.
"""
_LOST_CODES = (1060, 1205, 1213)
"""The same as error numbers: MySQL's column, lock wait timeout (SQL Server's deadlock has that number), deadlock."""
_LOST_WORDS = re.compile(
    r"already exists|already an object|already used by an existing|duplicate column|deadlock|lock wait timeout"
    r"|lock request time out",
    re.IGNORECASE,
)
"""The same for drivers that give neither."""
_UNSPECIFIC_STATES = (None, "23000", "HY000")
"""SQLSTATE of drivers that say no more than "integrity" or "general error"."""
_AWAY_STATES = re.compile("08...|57P0[1-3]|53300")
"""SQLSTATE of servers that cannot be reached, shut down or start up, or have too many connections."""
_CLOCKS = {
    "postgresql": "select extract(epoch from clock_timestamp())",
    "mysql": "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1e6",
    "mariadb": "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1e6",
    "mssql": "select datediff_big(microsecond, '1970-01-01', sysutcdatetime()) / 1e6",
    "oracle": (
        "select extract(day from since) * 86400 + extract(hour from since) * 3600 + extract(minute from since) * 60 "
        "+ extract(second from since) from "
        "(select sys_extract_utc(systimestamp) - timestamp '1970-01-01 00:00:00' as since from dual)"
    ),
}
"""How the server's clock is asked, by dialect; SQLite has none of its own."""
_POSTGRESQL_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Seconds, and milliseconds: a server that vanished without a word is missed after about a minute."""
_POSTGRESQL_IDLE_S = 60
"""After which a server ends a transaction of a client that vanished, whose locks would hold up the next one."""
_POSTGRESQL_COLUMNS = frozenset({"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid"})
"""Every table of PostgreSQL has these already, for its own use."""
_BUSY_S = 60
_LONGEST_KEY = 190
"""Characters of a key, where a database wants to know it."""


class SQLDatabase:
    """A connector with one engine; several threads may use it.

    Args:
        url: As SQLAlchemy writes them; `postgresql://` means psycopg 3.

    Raises:
        ConfigError: It is no such URL.
        MissingExtraError: The database's driver is not installed.
    """

    page_rows = 10_000
    has_index = True

    def __init__(self, url: str) -> None:
        self._url = _parsed(url)
        self.location = without_secrets(
            self._url.create(
                url.partition("://")[0], host=self._url.host, port=self._url.port, database=self._url.database
            ).render_as_string()
        )
        self._engine = self._make_engine()
        self.reserved = _POSTGRESQL_COLUMNS if self._url.get_backend_name() == "postgresql" else frozenset()

    def quote(self, name: str) -> str:
        """In the quotes of the dialect; a colon is escaped, for it would begin a parameter."""
        preparer = self._engine.dialect.identifier_preparer
        first, last = preparer.initial_quote, preparer.final_quote
        return first + name.replace(last, last * 2).replace(":", r"\:") + last

    def sql_type(self, kind: pa.DataType, *, is_key: bool) -> str:
        """In the words of the dialect."""
        return str(column_type(kind, is_key=is_key).compile(dialect=self._engine.dialect))

    @contextmanager
    def transaction(self) -> Iterator["_Transaction"]:
        """On a connection of the pool."""
        with self._explained(), self._engine.begin() as connection:
            yield _Transaction(connection)

    def close(self) -> None:
        """End the connections of the pool."""
        self._engine.dispose()

    def _make_engine(self) -> "Engine":
        import sqlalchemy as sa
        from sqlalchemy.exc import NoSuchModuleError

        is_sqlite = self._url.get_backend_name() == "sqlite"
        if is_sqlite and self._url.database in (None, "", ":memory:"):
            raise ConfigError("a SQLite database in memory is gone when the run ends: name a file, sqlite:///FILE.db")
        try:
            engine = sa.create_engine(
                self._url,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args=self._connect_args(),
            )
        except NoSuchModuleError:
            raise ConfigError(f"{self.location!r} is of no database that is known here: {self._advice()}") from None
        except ImportError as error:
            if self._url.get_driver_name() == "psycopg":
                raise MissingExtraError("psycopg", "sql") from None
            raise ConfigError(f"{self.location!r} needs {error.name!r}: {self._advice()}") from None
        if is_sqlite:
            _prepare_sqlite(engine, self._url)
        if self._url.get_backend_name() == "postgresql":
            sa.event.listen(engine, "begin", _limit_idle_time)
        return engine

    def _connect_args(self) -> dict[str, Any]:
        """What the URL does not say."""
        if self._url.get_backend_name() == "sqlite":
            return {"timeout": _BUSY_S}
        timeouts = _POSTGRESQL_TIMEOUTS if self._url.get_driver_name() in ("psycopg", "psycopg2") else {}
        return {name: value for name, value in timeouts.items() if name not in self._url.query}

    def _advice(self) -> str:
        return "install the SQLAlchemy driver of that database, or write to postgresql://, sqlite:/// or a .duckdb file"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            message = self._without_secrets(str(cause))
            if getattr(cause, "sqlite_errorname", "") == "SQLITE_NOTADB":
                raise ExistsError(f"{self.location!r} is not a SQLite file: choose another name") from None
            if is_conflict(error):
                raise Collision(f"{self.location!r} has such a row already, or changed meanwhile: {message}") from None
            advice = "check the URL, that the server answers, and what its user may do, then run the same command again"
            kind = Unreachable if is_away(error) else StorageError
            raise kind(f"the database {self.location!r} refused: {message}; {advice}") from None

    def _without_secrets(self, text: str) -> str:
        """The first line of a message; drivers repeat what they were given."""
        given = {name: str(value) for name, value in self._url.query.items() if looks_secret(name)}
        for secret in (str(self._url.password or ""), *given.values()):
            for form in filter(None, (secret, quote(secret, safe=""))):
                text = text.replace(form, HIDDEN)
        return redact(next(iter(text.strip().splitlines()), "no reason given"))


def column_type(kind: pa.DataType, *, is_key: bool) -> "TypeEngine[Any]":
    """The column type for values of an Arrow type, which every dialect can compile.

    Text is Unicode everywhere: SQL Server's VARCHAR and TEXT hold a single code page, so it needs NVARCHAR.
    """
    import sqlalchemy as sa
    from sqlalchemy.dialects import mssql, mysql

    key = sa.Text().with_variant(sa.String(_LONGEST_KEY), "mysql", "mariadb", "oracle")
    text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    types: dict[pa.DataType, Any] = {
        pa.string(): (
            key.with_variant(mssql.NVARCHAR(_LONGEST_KEY), "mssql")
            if is_key
            else text.with_variant(mssql.NVARCHAR(), "mssql")
        ),
        pa.int32(): sa.Integer(),
        pa.float32(): sa.REAL(),
        pa.float64(): sa.Double(),
        pa.binary(): sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
    }
    found: TypeEngine[Any] = types[kind]
    return found


def is_conflict(error: "SQLAlchemyError") -> bool:
    """Whether a transaction lost against a concurrent one, so that it can be tried again."""
    from sqlalchemy.exc import IntegrityError

    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None)
    code = getattr(cause, "errno", None) or next(iter(cause.args), None)
    if state in _LOST_STATES or code in _LOST_CODES:
        return True
    said = isinstance(error, IntegrityError) or _LOST_WORDS.search(str(cause)) is not None
    return state in _UNSPECIFIC_STATES and said


def is_away(error: "SQLAlchemyError") -> bool:
    """Whether there was no connection, or it was lost: to a server that was reached before, one can be had again."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or _AWAY_STATES.fullmatch(str(state)):
        return True
    if getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
        return True
    return isinstance(error, OperationalError | InterfaceError) and error.statement is None and state is None


class _Transaction:
    """What can be done between begin and commit."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def now(self) -> float:
        sql = _CLOCKS.get(self._connection.dialect.name)
        return time.time() if sql is None else float(self.execute(sql)[0][0])

    def columns(self, name: str) -> set[str] | None:
        import sqlalchemy as sa

        if not sa.inspect(self._connection).has_table(name):
            return None
        star: Any = sa.select(sa.literal_column("*")).select_from(sa.table(name)).where(sa.literal_column("1") == 0)
        return set(self._connection.execute(star).keys())

    def execute(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        import sqlalchemy as sa

        result = self._connection.execute(sa.text(sql), values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def change(self, sql: str, **values: Any) -> int:
        import sqlalchemy as sa

        return int(self._connection.execute(sa.text(sql), values).rowcount)

    def insert(self, table: str, rows: pa.Table) -> None:
        import sqlalchemy as sa

        names = rows.column_names
        statement = sa.text(
            f"insert into {table} ({', '.join(names)}) values ({', '.join(f':{name}' for name in names)})"
        )
        for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            if len(batch):
                self._connection.execute(statement, batch.to_pylist())
        if self._connection.dialect.name == "postgresql":
            _limit_idle_time(self._connection)  # Once more: the way in which many rows are sent stops that clock.

    def select(self, query: Query, **values: Any) -> pa.Table:
        import sqlalchemy as sa

        # Built, not written: not every dialect calls it LIMIT.
        statement: Any = (
            sa.select(*map(sa.literal_column, query.columns.names))
            .select_from(sa.text(query.table))
            .where(sa.text(query.where))
            .order_by(sa.text(query.order))
            .limit(query.limit)
        )
        rows = self._connection.execute(statement, values).all()
        columns = zip(*rows, strict=True) if rows else ([] for _ in query.columns)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, query.columns, strict=True)]
        return pa.table(arrays, schema=query.columns)


def _parsed(url: str) -> "URL":
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtraError("SQLAlchemy", "sql") from None
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{redact(without_secrets(url))!r} is no URL of a database: postgresql://USER@HOST/DATABASE or "
            "sqlite:///FILE.db is expected; special characters of a password are written as %40 and the like"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _limit_idle_time(connection: "Connection") -> None:
    """Let the server end this transaction if no more is heard of it."""
    connection.exec_driver_sql(f"set local idle_in_transaction_session_timeout = '{_POSTGRESQL_IDLE_S}s'")


def _prepare_sqlite(engine: "Engine", url: "URL") -> None:
    """Make a file fit for several processes: writers queue from their first statement on, and readers do not block."""
    from sqlite3 import OperationalError

    from sqlalchemy import event

    if not str(url.database).startswith("file:"):
        with suppress(OSError):  # SQLite says what is wrong.
            make_directory(Path(str(url.database)).parent)

    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # Python would begin transactions by itself, and too late.
        with suppress(OperationalError):  # Another process has the file in use; the next connection changes it.
            connection.execute("pragma journal_mode = wal")

    def on_begin(connection: "Connection") -> None:
        connection.exec_driver_sql("begin immediate")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


class DatabaseReader:
    """Says where the rows are: a database is queried directly."""

    is_shared = False

    def __init__(self, results: ResultsOf) -> None:
        self._results = results

    def obstacle(self, workspace: Workspace) -> str:
        """See `Reader.obstacle`."""
        own = self._results
        return (
            f"the rows of {own.name!r} are in {own.target}: query that database directly, in its tables "
            f"{own.prefix}images and {own.prefix}detections (job = {own.job!r})"
        )

    def has_rows(self) -> bool:
        """See `Reader.has_rows`."""
        return False

    def attach(self, database: Any, *, restricted: bool) -> Views:
        """See `Reader.attach`."""
        raise ConfigError(f"{self._results.target} is not read through DuckDB")

    def rows_in(self, files: Sequence[str]) -> str | None:
        """See `Reader.rows_in`."""
        return None
