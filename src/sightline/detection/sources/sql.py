"""Images in a database: the rows of a query, with the image in a column, or its path."""

import json
import posixpath
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

from sightline.config import SourceConfig
from sightline.data import disk
from sightline.data.formats.layout import is_image
from sightline.data.location import without_secrets
from sightline.detection.item import Item
from sightline.detection.sources.columns import (
    Columns,
    image_of,
    key_from_json,
    key_text,
    key_to_json,
    settings_text,
)
from sightline.detection.sources.keys import UniqueKeys
from sightline.detection.sources.names import local_path, make_item, shown
from sightline.detection.sources.paths import PathReader, is_seen
from sightline.errors import ConfigError, ImageError, MissingExtraError, NotFoundError, SourceError, StorageError
from sightline.retry import STORAGE_RETRY
from sightline.secrets import hide_parts, redact_values

_BATCH_ROWS = 1000
_LOOK_AT = 1000


class SqlSource:
    """The rows of a query.

    The query is wrapped: listing asks for keys or paths only, and an image is asked for by its key, which is a bound
    value. Names of columns are quoted by SQLAlchemy. Workers connect by themselves, so the URL travels to them.

    Attributes:
        name: Database, query, condition and columns, without credentials.
    """

    def __init__(self, url: str, config: SourceConfig) -> None:
        if not config.query:
            raise ConfigError("a database needs a query: source.query = 'select … from …'")
        self._query, self._where = config.query.strip().rstrip(";"), config.where
        self._url, self._file = _parse(url)
        self._public = _public(self._url, self._file)
        self._start()
        self._names = self._column_names()
        self._check_condition()
        self._columns = Columns.find(self._names, config, where="the query", holds_images=self._holds_images)
        if self._columns.image and not self._columns.key:
            raise ConfigError(
                f"images in a database are read by a key: say source.key = COLUMN, one of {', '.join(self._names)}"
            )
        self._paths = PathReader(config.root or (posixpath.dirname(self._file) if self._file else None))
        chosen = settings_text(config, "where", "image", "path", "key")
        self.name = shown(" ".join([self._public, self._hidden(self._query), *chosen]))

    def items(self) -> Iterator[Item]:
        """Streamed by the database, where its driver can.

        Raises:
            SourceError: The database does not answer; one that is lost half-way cannot go on where it was.
            FormatError: Two rows have the same key.
        """
        with closing(self._keys()) as keys, closing(self._listed(keys)) as items:
            yield from self._paths.with_versions(items) if self._columns.path else items

    def _listed(self, keys: UniqueKeys) -> Generator[Item]:
        STORAGE_RETRY.call(self._column_names, what=f"asking {self._public}", passes=_is_of_source)
        with self._connected() as connection:
            streaming = connection.execution_options(stream_results=True, yield_per=_BATCH_ROWS)
            with streaming.execute(self._listing()) as result:  # Whoever wants the first few leaves a cursor open.
                for number, row in enumerate(result):
                    key = key_text(row[0])
                    if key is not None:
                        keys.add(key, f"row {number}")
                    yield self._item(number, *row)

    def _keys(self) -> UniqueKeys:
        remedy = "name a column without such values in source.key, such as row_number() over (order by …) in the query"
        return UniqueKeys(where="the query", column=self._columns.key or "", remedy=remedy)

    def read(self, item: Item) -> bytes:
        """Ask for the image by its key, or open its path."""
        if self._columns.path:
            return self._paths.read(item)
        from sqlalchemy.exc import DataError

        key = key_from_json(json.loads(item.ref))
        if key is None:
            raise ImageError("no key", f"{item.uri}: the key is null"[:300], stage="path")
        rows = self._rows
        wanted = self._select(rows.c[self._columns.image]).where(rows.c[self._columns.key] == key)
        try:
            with self._connected(DataError) as connection:
                found = connection.execute(wanted).fetchmany(2)
        except DataError as error:  # It cannot be computed, such as by a division by zero.
            raise ImageError("row not readable", f"{item.uri}: {self._message(error)}"[:300], stage="read") from None
        if not found:
            raise ImageError("row not found", item.uri[:300], stage="read")
        if len(found) > 1:  # As where 'a' and 'A' are the same to the database.
            raise ImageError("several rows of a key", item.uri[:300], stage="path")
        return image_of(found[0][0], item.uri)

    def is_visible(self) -> bool:
        """Whether the file of the database, or the place of the paths in it, is there; servers are everywhere."""
        if self._columns.path:
            return is_seen(self._place)
        return self._file is None or disk.file_size(self._file) is not None

    def __getstate__(self) -> dict[str, Any]:
        local = ("_lock", "_engine", "_rows")
        state = {name: value for name, value in self.__dict__.items() if name not in local}
        return state | ({"_place": self._place} if self._columns.path else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._engine: Any = None

    def _item(self, number: int, key: Any, path: Any = None) -> Item:
        text = key_text(key)
        if self._columns.path and path:
            return self._paths.item(str(path), text)
        named = text or f"row-{number}"
        ref = "" if self._columns.path else json.dumps(key_to_json(key))
        return make_item(named, uri=f"{self._public}#{named}", version="", ref=ref)

    @cached_property
    def _place(self) -> str | None:
        with self._connected() as connection:
            first = connection.execute(self._listing().limit(_LOOK_AT)).all()
        return self._paths.visible_place(str(row[1] or "") for row in first)

    def _check_condition(self) -> None:
        import sqlalchemy

        if not self._where:
            return
        try:
            with self._connected() as connection:
                connection.execute(self._select(sqlalchemy.literal(1)).limit(0)).all()
        except StorageError as error:
            raise ConfigError(
                f"where = {self._where!r} cannot be used: {error}; the columns are {', '.join(self._names)}"
            ) from None

    def _listing(self) -> Any:
        import sqlalchemy

        columns = [self._columns.key, self._columns.path]
        chosen = [self._rows.c[name].label(f"c{n}") if name else sqlalchemy.null() for n, name in enumerate(columns)]
        return self._select(*chosen)

    def _select(self, *columns: Any) -> Any:
        """From the rows that meet the condition; a key may be that of others too."""
        import sqlalchemy

        statement = sqlalchemy.select(*columns).select_from(self._rows)
        return statement.where(sqlalchemy.text(f"(\n{_literal(self._where)}\n)")) if self._where else statement

    @cached_property
    def _rows(self) -> Any:
        """The query as a table."""
        import sqlalchemy

        columns: list[Any] = [sqlalchemy.column(name) for name in self._names]
        return sqlalchemy.text(_literal(self._query) + "\n").columns(*columns).subquery("q")

    def _column_names(self) -> list[str]:
        with self._connected() as connection:
            import sqlalchemy

            # The names are not known yet, so this one is written by hand.
            query = sqlalchemy.text(f"select * from (\n{_literal(self._query)}\n) as q where 1 = 0")
            return list(connection.execute(query).keys())

    def _holds_images(self, name: str) -> bool:
        """A text that ends like the name of an image is a path."""
        with self._connected() as connection:
            column = self._rows.c[name]
            first = connection.execute(self._select(column).where(column.is_not(None)).limit(1)).first()
        return first is None or not (isinstance(first[0], str) and is_image(first[0]))

    @contextmanager
    def _connected(self, *expected: type[Exception]) -> Iterator[Any]:
        """A connection; whatever goes wrong with it, but for what is expected, is the database's."""
        try:
            from sqlalchemy.exc import SQLAlchemyError
        except ImportError:
            raise MissingExtraError("SQLAlchemy", "sql") from None
        try:
            with self._opened().connect() as connection:
                yield connection
        except expected:
            raise
        except (SQLAlchemyError, ImportError) as error:
            raise SourceError(f"the database refused: {self._message(error)}") from None

    def _message(self, error: Exception) -> str:
        return self._hidden(str(getattr(error, "orig", None) or error).strip().partition("\n")[0])

    def _opened(self) -> Any:
        import sqlalchemy

        with self._lock:
            if self._engine is None:
                self._engine = sqlalchemy.create_engine(self._url, pool_pre_ping=True, max_overflow=-1)
                weakref.finalize(self, self._engine.dispose)
            return self._engine

    def _hidden(self, text: str) -> str:
        return hide_parts(text, self._url.set(query={}).render_as_string(hide_password=False))


def _is_of_source(error: BaseException) -> bool:
    return isinstance(error, SourceError)


def _literal(sql: str) -> str:
    """SQL in which SQLAlchemy finds no parameters."""
    return sql.replace(":", "\\:")


def _parse(url: str) -> tuple[Any, str | None]:
    """The parts of a URL, and the file of a database that is one; workers may stand in another directory."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtraError("SQLAlchemy", "sql") from None
    try:
        parsed = make_url(url)
        backend, database = parsed.get_backend_name(), parsed.database or ""
    except (ArgumentError, ValueError):
        raise ConfigError(f"{without_secrets(url)!r} is not the URL of a database: dialect://user@host/name") from None
    if backend not in ("sqlite", "duckdb") or not database or ":memory:" in database:
        return parsed, None
    file = local_path(unquote(database.removeprefix("file:")) if database.startswith("file:") else database)
    if disk.file_size(file) is None:
        raise NotFoundError(
            f"there is no database {file!r}: say {backend}:///PATH, or {backend}:////PATH from the root on"
        )
    if backend != "sqlite":
        return parsed.set(database=file), file
    # Otherwise whoever connects to a file that is gone would make an empty one.
    return parsed.set(database=f"file:{quote(file)}", query={"mode": "ro", **parsed.query, "uri": "true"}), file


def _public(url: Any, file: str | None) -> str:
    """What may be written down; a server may be named in the query, so only what is secret in it is hidden."""
    if file:
        return f"{url.drivername}:///{file}"
    query = redact_values(dict(url.query))
    parts = type(url).create(url.drivername, host=url.host, port=url.port, database=url.database, query=query)
    return str(parts.render_as_string())
