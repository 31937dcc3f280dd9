"""The tables of a database of detections: their columns, how they are made, and rows as they have them.

Several jobs share a database. `images` and `detections` are for readers; the tables that begin with `sightline_` hold
plans and leases.
"""

import pyarrow as pa
import pyarrow.compute as pc

from sightline.detection.schema import DETECTIONS, IMAGES, flatten
from sightline.detection.targets.connector import Connector, Transaction
from sightline.errors import ConfigError, ExistsError

_NUL, _VISIBLE_NUL = "\0", "\N{SYMBOL FOR NULL}"


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_JOB = _required("job", pa.string())
IMAGE_ROWS = pa.schema([_JOB, *(field for field in IMAGES if field.name != "boxes")])
DETECTION_ROWS = pa.schema([_JOB, *DETECTIONS, IMAGES.field("chunk")])
JOB_ROWS = pa.schema([_required("id", pa.string()), _required("description", pa.string()), ("manifest", pa.string())])
GENERATION_ROWS = pa.schema([_JOB, _required("number", pa.int32()), _required("plan", pa.binary())])
CHUNK_ROWS = pa.schema(
    [
        _JOB,
        _required("chunk", pa.string()),
        ("owner", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int32()),
        ("expires", pa.float64()),
        _required("attempts", pa.int32()),
        ("committed", pa.float64()),
        ("ids", pa.string()),
        ("revision", pa.int32()),
        ("writer", pa.string()),
        ("row_format", pa.int32()),
    ]
)
_ADDED = {"ids", "revision", "writer", "row_format"}
"""Columns that tables of the first format do not have; null for the chunks that are in them."""
_BY_IMAGE = ("job", "image_id")
_TABLES: dict[str, tuple[pa.Schema, tuple[str, ...]]] = {
    "images": (IMAGE_ROWS, _BY_IMAGE),
    "detections": (DETECTION_ROWS, ()),
    "sightline_jobs": (JOB_ROWS, ("id",)),
    "sightline_generations": (GENERATION_ROWS, ("job", "number")),
    "sightline_chunks": (CHUNK_ROWS, ("job", "chunk")),
}
"""Columns and primary key of every table."""
_INDEXES = {"images": ("images_by_chunk", ("job", "chunk")), "detections": ("detections_by_image", _BY_IMAGE)}
_KEYS = {"id", "job", "image_id", "chunk"}
"""Texts by which rows are found; some databases want them to be short."""
_MAX_PREFIX_BYTES = 63 - max(len(name) for name in (*_TABLES, *(index for index, _ in _INDEXES.values())))
"""PostgreSQL cuts longer names off in silence."""


class Tables:
    """The tables by their names, quoted for SQL.

    Args:
        prefix: What the names of all tables begin with.
    """

    def __init__(self, connector: Connector, prefix: str) -> None:
        if not _is_name(prefix):
            raise ConfigError(
                f"setting 'detect.table_prefix' has value {prefix!r}: text of at most {_MAX_PREFIX_BYTES} bytes "
                "in UTF-8 without NUL is expected"
            )
        self._connector, self._prefix = connector, prefix
        self.images, self.detections, self.jobs, self.generations, self.chunks = map(self._quoted, _TABLES)

    def make_missing(self, transaction: Transaction) -> None:
        """Make those that are not there.

        Raises:
            ExistsError: One of them is something else.
        """
        for name, (schema, key) in _TABLES.items():
            there = transaction.columns(self._prefix + name)
            missing = [] if there is None else [column for column in schema.names if column not in there]
            if there is None:
                self._make(transaction, name, schema, key)
            elif set(missing) == _ADDED:
                self._extend(transaction, name, schema)
            elif missing:
                raise ExistsError(
                    f"{self._connector.location!r} has a table {self._prefix + name!r} of something else (it has no "
                    f"column {missing[0]!r}): set detect.table_prefix to give ours other names, or use another database"
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
        self._make_index(transaction, name, table)

    def _extend(self, transaction: Transaction, name: str, schema: pa.Schema) -> None:
        """Bring tables of the first format to this one."""
        for column in sorted(_ADDED):
            transaction.execute(f"alter table {self._quoted(name)} add {self._column(schema.field(column), {})}")
        self._make_index(transaction, "images", self.images)

    def _make_index(self, transaction: Transaction, name: str, table: str) -> None:
        if name in _INDEXES and self._connector.has_index:
            index, columns = _INDEXES[name]
            transaction.execute(f"create index {self._quoted(index)} on {table} ({', '.join(columns)})")

    def _column(self, field: pa.Field, taken: dict[str, str]) -> str:
        kind = self._connector.sql_type(field.type, is_key=field.name in _KEYS)
        return f"{taken.get(field.name, field.name)} {kind}{'' if field.nullable else ' not null'}"

    def _quoted(self, name: str) -> str:
        return self._connector.quote(self._prefix + name)


def stored_rows(job: str, chunk: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of `images` and `detections` for rows in the columns of `IMAGES`."""
    images, detections = _without_nul(rows), _without_nul(flatten(rows))
    images = images.add_column(0, _JOB, _repeated(job, images))
    detections = detections.add_column(0, _JOB, _repeated(job, detections))
    detections = detections.append_column("chunk", _repeated(chunk, detections))
    return images.select(IMAGE_ROWS.names).cast(IMAGE_ROWS), detections.select(DETECTION_ROWS.names).cast(
        DETECTION_ROWS
    )


def _is_name(prefix: str) -> bool:
    try:
        return _NUL not in prefix and len(prefix.encode()) <= _MAX_PREFIX_BYTES
    except UnicodeEncodeError:
        return False


def _repeated(value: str, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), len(rows))


def _without_nul(rows: pa.Table) -> pa.Table:
    """Texts with a visible sign for NUL, which PostgreSQL refuses."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            column = pc.replace_substring(rows.column(number), _NUL, _VISIBLE_NUL)
            rows = rows.set_column(number, field, column)
    return rows
