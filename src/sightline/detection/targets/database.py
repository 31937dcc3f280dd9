"""Detections in a database: what all kinds have in common, in portable SQL.

What differs between them is in a connector: `duckdb_file` and `sqlalchemy_database`. Several jobs share a database.
`images` and `detections` are for readers; the tables that begin with `sightline_` hold plans and leases.
"""

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sightline.detection.schema import DETECTIONS, IMAGES, flatten
from sightline.detection.targets.lease import is_dead
from sightline.detection.targets.target import Owner
from sightline.errors import ConfigError, ExistsError, StorageError
from sightline.secrets import redact_values

T = TypeVar("T")

_BATCH_ROWS = 10_000
_IN_ONE_QUERY = 500
"""Values that are compared at once; databases have limits."""
_TRIES = 5
_NUL, _VISIBLE_NUL = "\0", "\N{SYMBOL FOR NULL}"


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_JOB = _required("job", pa.string())
_SCALARS = [field for field in IMAGES if field.name != "boxes"]
_IMAGES = pa.schema([_JOB, *_SCALARS])
_DETECTIONS = pa.schema([_JOB, *DETECTIONS, IMAGES.field("chunk")])
_JOBS = pa.schema([_required("id", pa.string()), _required("description", pa.string()), ("manifest", pa.string())])
_GENERATIONS = pa.schema([_JOB, _required("number", pa.int32()), _required("plan", pa.binary())])
_CHUNKS = pa.schema(
    [
        _JOB,
        _required("chunk", pa.string()),
        ("owner", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int32()),
        ("expires", pa.float64()),
        _required("attempts", pa.int32()),
        ("committed", pa.float64()),
    ]
)
_BY_IMAGE = ("job", "image_id")
_TABLES: dict[str, tuple[pa.Schema, tuple[str, ...]]] = {
    "images": (_IMAGES, _BY_IMAGE),
    "detections": (_DETECTIONS, ()),
    "sightline_jobs": (_JOBS, ("id",)),
    "sightline_generations": (_GENERATIONS, ("job", "number")),
    "sightline_chunks": (_CHUNKS, ("job", "chunk")),
}
"""Columns and primary key of every table."""
_INDEX = "detections_by_image"
_KEYS = {"id", "job", "image_id", "chunk"}
"""Texts by which rows are found; some databases want them to be short."""
_MAX_PREFIX_BYTES = 63 - max(len(name) for name in (*_TABLES, _INDEX))
"""PostgreSQL cuts longer names off in silence."""


class Collision(StorageError):
    """Somebody else has written what this transaction would; a new one sees it."""


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
            StorageError: The database refused.
        """
        ...

    def close(self) -> None:
        """End connections."""
        ...


@dataclass(frozen=True, slots=True)
class _Lease:
    """Who has a chunk."""

    owner: str | None
    host: str | None
    pid: int | None
    expires: float | None
    attempts: int
    committed: float | None

    def is_free_for(self, owner: Owner, now: float) -> bool:
        if self.committed is not None:
            return False
        if self.owner in (None, owner.token) or self.expires is None or self.expires <= now:
            return True
        return self.host is not None and self.pid is not None and is_dead(self.host, self.pid)


class DatabaseTarget:
    """The detections of one job in a database.

    Args:
        prefix: What the names of all tables begin with.
    """

    def __init__(self, connector: Connector, *, prefix: str = "") -> None:
        if not _is_name(prefix):
            raise ConfigError(
                f"setting 'detect.table_prefix' has value {prefix!r}: text of at most {_MAX_PREFIX_BYTES} bytes "
                "in UTF-8 without NUL is expected"
            )
        self._connector, self._prefix, self._job = connector, prefix, ""
        self._images, self._detections, self._jobs, self._generations, self._chunks = map(self._quoted, _TABLES)

    @property
    def location(self) -> str:
        """Without credentials."""
        return self._connector.location

    def open(self, job: dict[str, Any]) -> None:
        """Make the tables, and enter the job; both may be there already."""
        self._run(self._make_missing)
        self._job = job["id"]
        row = {"id": self._job, "description": json.dumps(redact_values(job), sort_keys=True)}

        def enter(transaction: Transaction) -> None:
            if not transaction.execute(f"select id from {self._jobs} where id = :job", job=self._job):
                transaction.insert(self._jobs, pa.Table.from_pylist([row], schema=_JOBS))

        self._run(enter)

    def generation(self, number: int) -> bytes | None:
        """A part of the plan, if it has been published."""
        sql = f"select plan from {self._generations} where job = :job and number = :number"
        found = self._run(lambda transaction: transaction.execute(sql, job=self._job, number=number))
        return bytes(found[0][0]) if found else None

    def publish(self, number: int, plan: bytes) -> bool:
        """Add a part to the plan; the first one of its number stays."""
        row = pa.Table.from_pylist([{"job": self._job, "number": number, "plan": plan}], schema=_GENERATIONS)
        sql = f"select number from {self._generations} where job = :job and number = :number"

        def add(transaction: Transaction) -> bool:
            if transaction.execute(sql, job=self._job, number=number):
                return False
            transaction.insert(self._generations, row)
            return True

        return self._run(add)

    def committed(self) -> set[str]:
        """Names of the chunks whose rows are there."""
        sql = f"select chunk from {self._chunks} where job = :job and committed is not null"
        return {chunk for (chunk,) in self._run(lambda transaction: transaction.execute(sql, job=self._job))}

    def claim(self, chunks: Sequence[str], owner: Owner, *, lease_s: float) -> dict[str, int]:
        """Lease chunks that are free; for those that were got, how often they have been leased with this time."""
        wanted = sorted(set(chunks))  # In one order for all runs, or two would wait for each other's rows.
        return self._run(lambda transaction: self._claim(transaction, wanted, owner, lease_s))

    def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
        """Make own leases last for as long again from now."""
        expires = time.time() + lease_s
        self._update_own(chunks, owner, "expires = :expires", expires=expires)

    def release(self, chunks: Collection[str], owner: Owner) -> None:
        """Give own leases back; the attempt does not count."""
        cleared = "owner = null, host = null, pid = null, expires = null"
        self._update_own(chunks, owner, f"{cleared}, attempts = attempts - 1")

    def commit(self, chunk: str, rows: pa.Table) -> bool:
        """Add the rows of a chunk, all or none; false if another run was first."""
        images, detections = self._stored(chunk, rows)

        def add(transaction: Transaction) -> bool:
            if not self._mark_committed(transaction, chunk):
                return False
            transaction.insert(self._images, images)
            transaction.insert(self._detections, detections)
            return True

        return self._run(add)

    def rewrite(self, chunk: str, rows: pa.Table) -> None:
        """Put new rows in place of those of the same images, in one step."""
        images, detections = self._stored(chunk, rows)
        ids = images.column("image_id").to_pylist()

        def replace(transaction: Transaction) -> None:
            for some, listed in _listed(ids):
                for table in (self._images, self._detections):
                    sql = f"delete from {table} where job = :job and image_id in ({listed})"
                    transaction.execute(sql, job=self._job, **some)
            transaction.insert(self._images, images)
            transaction.insert(self._detections, detections)

        self._run(replace)

    def rows(self, columns: Sequence[str], *, status: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some scalar columns of `images` of this job, by image id.

        Every page is a query of its own: no connection, and no lock on a file, is held while the caller works.
        """
        schema = pa.schema([IMAGES.field(name) for name in dict.fromkeys(("image_id", *columns))])
        limit, values = self._connector.page_rows, {"job": self._job}
        where = "job = :job"
        if status is not None:
            where, values = f"{where} and status = :status", {**values, "status": status}
        page = self._select(Query(self._images, schema, where, "image_id", limit), **values)
        while len(page):
            yield from page.select(list(columns)).to_batches(max_chunksize=_BATCH_ROWS)
            if len(page) < limit:
                return
            following = Query(self._images, schema, f"{where} and image_id > :last", "image_id", limit)
            page = self._select(following, **values, last=page.column("image_id")[-1].as_py())

    def detections(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of `detections` of this job, by image id; a page is a query of its own."""
        schema = pa.schema([_DETECTIONS.field(name) for name in columns])
        where = "job = :job and image_id >= :first and image_id <= :last"
        query = Query(self._detections, schema, where, "image_id")
        for first, last in self._spans():
            yield from self._select(query, job=self._job, first=first, last=last).to_batches(max_chunksize=_BATCH_ROWS)

    def read_manifest(self) -> dict[str, Any] | None:
        """What the last run left."""
        sql = f"select manifest from {self._jobs} where id = :job"
        found = self._run(lambda transaction: transaction.execute(sql, job=self._job))
        return json.loads(found[0][0]) if found and found[0][0] else None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Keep counts, parameters and timings beside the rows, without credentials."""
        text = json.dumps(redact_values(manifest), sort_keys=True)
        sql = f"update {self._jobs} set manifest = :manifest where id = :job"
        self._run(lambda transaction: transaction.change(sql, manifest=text, job=self._job))

    def close(self) -> None:
        """End connections."""
        self._connector.close()

    def _quoted(self, name: str) -> str:
        return self._connector.quote(self._prefix + name)

    def _run(self, work: Callable[[Transaction], T]) -> T:
        """Work in a transaction of its own, again if it collides with another."""
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._connector.transaction() as transaction:
                    return work(transaction)
            except Collision:
                if not tries_left:
                    raise
                time.sleep(random.uniform(0.01, 0.1))
        raise AssertionError("unreachable")

    def _select(self, query: Query, **values: Any) -> pa.Table:
        return self._run(lambda transaction: transaction.select(query, **values))

    def _make_missing(self, transaction: Transaction) -> None:
        for name, (schema, key) in _TABLES.items():
            there = transaction.columns(self._prefix + name)
            if there is None:
                self._make(transaction, name, schema, key)
            elif missing := [column for column in schema.names if column not in there]:
                raise ExistsError(
                    f"{self.location!r} has a table {self._prefix + name!r} of something else (it has no column "
                    f"{missing[0]!r}): set detect.table_prefix to give ours other names, or use another database"
                )

    def _make(self, transaction: Transaction, name: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """A table; where its columns may not be called so, a view that can be written to, and a table behind it."""
        taken = {column: f"{column}_" for column in schema.names if column in self._connector.reserved}
        table = self._quoted(f"sightline_{name}" if taken else name)
        parts = [self._column(field, taken) for field in schema] + [f"primary key ({', '.join(key)})"] * bool(key)
        transaction.execute(f"create table {table} ({', '.join(parts)})")
        if taken:
            columns = ", ".join(f"{taken.get(column, column)} as {column}" for column in schema.names)
            transaction.execute(f"create view {self._quoted(name)} as select {columns} from {table}")
        if not key and self._connector.has_index:
            transaction.execute(f"create index {self._quoted(_INDEX)} on {table} ({', '.join(_BY_IMAGE)})")

    def _column(self, field: pa.Field, taken: dict[str, str]) -> str:
        kind = self._connector.sql_type(field.type, is_key=field.name in _KEYS)
        return f"{taken.get(field.name, field.name)} {kind}{'' if field.nullable else ' not null'}"

    def _claim(self, transaction: Transaction, wanted: list[str], owner: Owner, lease_s: float) -> dict[str, int]:
        now = time.time()
        new = {"job": self._job, "owner": owner.token, "host": owner.host, "pid": owner.pid, "expires": now + lease_s}
        leases = self._leases(transaction, wanted)
        got = {
            chunk: lease.attempts + 1
            for chunk, lease in leases.items()
            if lease.is_free_for(owner, now) and self._take(transaction, chunk, lease, new)
        }
        first = dict.fromkeys((chunk for chunk in wanted if chunk not in leases), 1)
        rows = [{**new, "chunk": chunk, "attempts": attempts} for chunk, attempts in first.items()]
        if rows:
            transaction.insert(self._chunks, pa.Table.from_pylist(rows, schema=_CHUNKS))
        return got | first

    def _leases(self, transaction: Transaction, chunks: list[str]) -> dict[str, _Lease]:
        found = {}
        for some, listed in _listed(chunks):
            sql = (
                f"select chunk, owner, host, pid, expires, attempts, committed from {self._chunks} "
                f"where job = :job and chunk in ({listed})"
            )
            for chunk, *lease in transaction.execute(sql, job=self._job, **some):
                found[chunk] = _Lease(*lease)
        return dict(sorted(found.items()))

    def _take(self, transaction: Transaction, chunk: str, lease: _Lease, new: dict[str, Any]) -> bool:
        """Change a lease from what was read; false if another run has changed it since."""
        sql = (
            f"update {self._chunks} set owner = :owner, host = :host, pid = :pid, expires = :expires, "
            "attempts = attempts + 1 where job = :job and chunk = :chunk and committed is null "
            "and (owner is null or (owner = :seen and expires = :seen_expires))"
        )
        return transaction.change(sql, **new, chunk=chunk, seen=lease.owner, seen_expires=lease.expires) == 1

    def _update_own(self, chunks: Collection[str], owner: Owner, assignments: str, **values: Any) -> None:
        sql = (
            f"update {self._chunks} set {assignments} "
            "where job = :job and chunk = :chunk and owner = :owner and committed is null"
        )

        def update(transaction: Transaction) -> None:
            for chunk in sorted(chunks):
                transaction.change(sql, job=self._job, chunk=chunk, owner=owner.token, **values)

        if chunks:
            self._run(update)

    def _mark_committed(self, transaction: Transaction, chunk: str) -> bool:
        now, of_chunk = time.time(), {"job": self._job, "chunk": chunk}
        sql = (
            f"update {self._chunks} set committed = :now, owner = null, expires = null "
            "where job = :job and chunk = :chunk and committed is null"
        )
        if transaction.change(sql, now=now, **of_chunk):
            return True
        if transaction.execute(f"select chunk from {self._chunks} where job = :job and chunk = :chunk", **of_chunk):
            return False
        row = {**of_chunk, "attempts": 0, "committed": now}
        transaction.insert(self._chunks, pa.Table.from_pylist([row], schema=_CHUNKS))
        return True

    def _stored(self, chunk: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Rows of `images` and `detections`, before a transaction begins: others wait while it lasts."""
        images, detections = _without_nul(rows), _without_nul(flatten(rows))
        images = images.add_column(0, _JOB, _repeated(self._job, images))
        detections = detections.add_column(0, _JOB, _repeated(self._job, detections))
        detections = detections.append_column("chunk", _repeated(chunk, detections))
        return images.select(_IMAGES.names).cast(_IMAGES), detections.select(_DETECTIONS.names).cast(_DETECTIONS)

    def _spans(self) -> Iterator[tuple[str, str]]:
        """First and last ids of images that together have about a page of boxes."""
        first, last, boxes = "", "", 0
        for batch in self.rows(("image_id", "num_detections")):
            for image_id, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if not boxes:
                    first = image_id
                last, boxes = image_id, boxes + count
                if boxes >= self._connector.page_rows:
                    yield first, last
                    boxes = 0
        if boxes:
            yield first, last


def _is_name(prefix: str) -> bool:
    try:
        return _NUL not in prefix and len(prefix.encode()) <= _MAX_PREFIX_BYTES
    except UnicodeEncodeError:
        return False


def _listed(values: Sequence[str]) -> Iterator[tuple[dict[str, str], str]]:
    """Values in groups, as named parameters and as the list that names them."""
    for start in range(0, len(values), _IN_ONE_QUERY):
        some = {f"value{number}": value for number, value in enumerate(values[start : start + _IN_ONE_QUERY])}
        yield some, ", ".join(f":{name}" for name in some)


def _repeated(value: str, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), len(rows))


def _without_nul(rows: pa.Table) -> pa.Table:
    """Texts with a visible sign for NUL, which PostgreSQL refuses."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            column = pc.replace_substring(rows.column(number), _NUL, _VISIBLE_NUL)
            rows = rows.set_column(number, field, column)
    return rows
