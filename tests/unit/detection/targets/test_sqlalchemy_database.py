"""Column types and conflicts of databases that the tests do not run: their dialects and the errors of their drivers."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.schema import CreateTable

from sightline.detection.targets.connector import Collision, Unreachable
from sightline.detection.targets.sqlalchemy_database import SQLDatabase, _Transaction, column_type, is_conflict
from sightline.detection.targets.tables import IMAGE_ROWS
from sightline.errors import StorageError

KEYS = {"job", "image_id", "chunk"}


@pytest.mark.parametrize(
    ("dialect", "key", "text"),
    [
        (mssql, "NVARCHAR(190)", "NVARCHAR(max)"),
        (mysql, "VARCHAR(190)", "LONGTEXT"),
        (oracle, "VARCHAR2(190 CHAR)", "CLOB"),
        (postgresql, "TEXT", "TEXT"),
        (sqlite, "TEXT", "TEXT"),
    ],
    ids=lambda value: getattr(value, "__name__", value).rpartition(".")[2],
)
def test_text_columns_hold_unicode(dialect: Any, key: str, text: str) -> None:
    columns = [sa.Column(field.name, column_type(field.type, is_key=field.name in KEYS)) for field in IMAGE_ROWS]
    ddl = str(CreateTable(sa.Table("images", sa.MetaData(), *columns)).compile(dialect=dialect.dialect()))
    lines = dict(
        line.strip().rstrip(",").removesuffix(" NULL").split(" ", 1)
        for line in ddl.splitlines()
        if line.startswith("\t")
    )
    assert {lines["image_id"], lines["job"], lines["chunk"]} == {key}
    assert {lines["uri"], lines["reason"], lines["detail"], lines["status"]} == {text}


class Answering:
    """A connection to a server that answers every query with one number."""

    def __init__(self, dialect: Any, answer: object) -> None:
        self.dialect, self._answer = dialect, answer
        self.asked: list[str] = []

    def execute(self, statement: Any, values: dict[str, Any]) -> Any:
        compiled = statement.compile(dialect=self.dialect)
        assert compiled.params == values == {}, "a time of day is not taken for a parameter"
        self.asked.append(str(compiled))

        class Result(list[Any]):
            returns_rows = True

        return Result([(self._answer,)])


@pytest.mark.parametrize(
    ("dialect", "clock"),
    [
        (mssql, "select datediff_big(microsecond, '1970-01-01', sysutcdatetime()) / 1e6"),
        (mysql, "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1e6"),
        (
            oracle,
            "select extract(day from since) * 86400 + extract(hour from since) * 3600 + extract(minute from since) * "
            "60 + extract(second from since) from "
            "(select sys_extract_utc(systimestamp) - timestamp '1970-01-01 00:00:00' as since from dual)",
        ),
        (postgresql, "select extract(epoch from clock_timestamp())"),
    ],
    ids=lambda value: getattr(value, "__name__", value).rpartition(".")[2],
)
def test_leases_go_by_the_clock_of_the_server(dialect: Any, clock: str) -> None:
    server = Answering(dialect.dialect(), Decimal("1234.5"))
    assert _Transaction(server).now() == 1234.5  # type: ignore[arg-type]
    assert server.asked == [clock]


class DriverError(Exception):
    """An exception as a driver raises it."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


LOCK_WAIT = "Lock wait timeout exceeded; try restarting transaction"
DUPLICATE = "Duplicate entry 'a-b' for key 'images.PRIMARY'"
CONFLICTS = {
    "pymysql, lock wait": (OperationalError, DriverError(1205, LOCK_WAIT)),
    "pymysql, lock wait in German": (OperationalError, DriverError(1205, "Beim Warten auf eine Sperre")),
    "pymysql, deadlock": (OperationalError, DriverError(1213, "Deadlock found when trying to get lock")),
    "pymysql, key": (IntegrityError, DriverError(1062, DUPLICATE)),
    "mysql-connector, lock wait": (
        DatabaseError,
        DriverError(f"1205 (HY000): {LOCK_WAIT}", errno=1205, sqlstate="HY000", msg=LOCK_WAIT),
    ),
    "mysql-connector, key": (
        IntegrityError,
        DriverError(f"1062 (23000): {DUPLICATE}", errno=1062, sqlstate="23000", msg=DUPLICATE),
    ),
    "pyodbc, deadlock": (
        DatabaseError,
        DriverError("40001", "[40001] [Microsoft][ODBC Driver 18] was deadlocked on lock resources (1205)"),
    ),
    "pyodbc, key": (IntegrityError, DriverError("23000", "[23000] Violation of PRIMARY KEY constraint (2627)")),
    "pyodbc, lock timeout": (
        ProgrammingError,
        DriverError("42000", "[42000] Lock request time out period exceeded. (1222) (SQLExecDirectW)"),
    ),
    "psycopg, key": (IntegrityError, DriverError("duplicate key value violates", sqlstate="23505")),
    "psycopg, serialization": (OperationalError, DriverError("could not serialize access", sqlstate="40001")),
    "psycopg, lock timeout": (OperationalError, DriverError("canceling statement", sqlstate="55P03")),
}
FAILURES = {
    "pymysql, password": (OperationalError, DriverError(1045, "Access denied for user 'me'@'localhost'")),
    "pymysql, gone": (OperationalError, DriverError(2013, "Lost connection to MySQL server during query")),
    "mysql-connector, disk": (DatabaseError, DriverError("1021 (HY000): Disk full", errno=1021, sqlstate="HY000")),
    "psycopg, null": (IntegrityError, DriverError("null value in column", sqlstate="23502")),
    "pyodbc, login": (ProgrammingError, DriverError("28000", "[28000] Login failed for user 'me'")),
}


AWAY = {
    "psycopg, shutdown": (OperationalError, DriverError("terminating connection", sqlstate="57P01"), "insert"),
    "psycopg, starting": (OperationalError, DriverError("is starting up", sqlstate="57P03"), None),
    "psycopg, refused": (OperationalError, DriverError("Connection refused", sqlstate=None), None),
    "psycopg, reset": (OperationalError, DriverError("connection failure", sqlstate="08006"), "select"),
    "pymysql, refused": (OperationalError, DriverError(2003, "Can't connect to MySQL server"), None),
    "sqlite, disk": (OperationalError, DriverError("disk I/O error", sqlite_errorname="SQLITE_IOERR_WRITE"), "insert"),
}


@pytest.mark.parametrize("name", AWAY)
def test_a_database_that_is_away_may_come_back(name: str, tmp_path: Path) -> None:
    kind, cause, statement = AWAY[name]
    with pytest.raises(Unreachable), SQLDatabase(f"sqlite:///{tmp_path}/x.db")._explained():
        raise kind(statement, {}, cause)


@pytest.mark.parametrize("name", CONFLICTS)
def test_a_lost_transaction_is_tried_again(name: str, tmp_path: Path) -> None:
    kind, cause = CONFLICTS[name]
    error = kind("insert", {}, cause)
    assert is_conflict(error)
    with pytest.raises(Collision), SQLDatabase(f"sqlite:///{tmp_path}/x.db")._explained():
        raise error


@pytest.mark.parametrize("name", FAILURES)
def test_other_failures_are_not_tried_again(name: str, tmp_path: Path) -> None:
    kind, cause = FAILURES[name]
    error = kind("insert", {}, cause)
    assert not is_conflict(error)
    with pytest.raises(StorageError) as caught, SQLDatabase(f"sqlite:///{tmp_path}/x.db")._explained():
        raise error
    assert not isinstance(caught.value, Collision | Unreachable)
