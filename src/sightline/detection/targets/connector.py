"""What a kind of database must bring, so that detections can lie in it: transactions, quotes and types."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sightline.errors import StorageError


class Collision(StorageError):
    """Somebody else has written what this transaction would; a new one sees it."""


class Unreachable(StorageError):
    """The connection was lost or refused, or a disk failed: that may pass. What a lost transaction did is not known."""


@dataclass(frozen=True, slots=True)
class Query:
    """Some columns of a table, in order of `order`; `where` has named parameters (`:job`)."""

    table: str
    columns: pa.Schema
    where: str
    order: str
    limit: int | None = None


class Transaction(Protocol):
    """What can be done before it is committed. Names of tables come quoted; values are bound, as `:name` in the SQL."""

    def now(self) -> float:
        """Seconds since 1970 by the clock of the database, so that leases do not depend on those of its users.

        A database without a server, or of a dialect whose words for it are not known, has the clock of this machine.
        """
        ...

    def columns(self, name: str) -> set[str] | None:
        """The columns of a table by its unquoted name; None if it does not exist."""
        ...

    def execute(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; rows if it has any."""
        ...

    def change(self, sql: str, **values: Any) -> int:
        """Run a statement; the number of rows that it changed."""
        ...

    def insert(self, table: str, rows: pa.Table) -> None:
        """Add rows in bulk."""
        ...

    def select(self, query: Query, **values: Any) -> pa.Table:
        """Rows as Arrow, in the schema that was asked for."""
        ...


class Connector(Protocol):
    """One kind of database."""

    location: str
    page_rows: int
    """Rows that are fetched at once."""
    has_index: bool
    """Whether `detections` gets an index; a database that stores columns only loses by one."""

    reserved: frozenset[str]
    """Names that columns of tables cannot have."""

    def quote(self, name: str) -> str:
        """A name as SQL writes it."""
        ...

    def sql_type(self, kind: pa.DataType, *, is_key: bool) -> str:
        """The type of a column."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commits at its end, and rolls back on an error.

        Raises:
            Collision: It lost against another one.
            Unreachable: The database was away.
            StorageError: The database refused.
        """
        ...

    def close(self) -> None:
        """End connections."""
        ...
