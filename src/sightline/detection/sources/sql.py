"""Images in a database: the rows of a query, with the image in a column, or its path."""

import json
import os
import posixpath
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sightline.config import SourceConfig
from sightline.data import disk
from sightline.data.formats.layout import is_image
from sightline.data.location import without_secrets
from sightline.detection.item import Item
from sightline.detection.sources.columns import Columns, image_of, key_from_json, key_text, key_to_json
from sightline.detection.sources.names import local_path, make_item, open_folder, shown
from sightline.detection.sources.paths import PathReader, is_seen
from sightline.errors import ConfigError, ImageError, MissingExtraError, StorageError
from sightline.secrets import hide_parts, looks_secret

_BATCH_ROWS = 1000
_LOOK_AT = 1000


class SqlSource:
    """The rows of a query.

    The query is wrapped: listing asks for keys or paths only, and an image is asked for by its key, which is a bound
    value. Names of columns are quoted by SQLAlchemy. Workers connect by themselves, so the URL travels to them.
    """

    def __init__(self, url: str, config: SourceConfig) -> None:
        if not config.query:
            raise ConfigError("a database needs a query: source.query = 'select … from …'")
        self._url, self._query, self._config = url, config.query.strip().rstrip(";"), config
        self._file = _database_file(url)
        self._public = _public(url, self._file)
        self._start()
        self._names = self._column_names()
        self._columns = Columns.find(self._names, config, where="the query", holds_images=self._holds_images)
        if self._columns.image and not self._columns.key:
            raise ConfigError(
                f"images in a database are read by a key: say source.key = COLUMN, one of {', '.join(self._names)}"
            )
        self._paths = PathReader(config.root or (posixpath.dirname(self._file) if self._file else None))
        if config.where:
            self._first_rows(1)

    @property
    def name(self) -> str:
        """Database, query, condition and columns, without credentials."""
        settings = [(name, getattr(self._config, name)) for name in ("where", "image", "path", "key")]
        root = [("root", open_folder(self._config.root)[1])] if self._config.root else []
        chosen = [f"{name} {value}" for name, value in [*settings, *root] if value]
        return shown(" ".join([self._public, hide_parts(self._query, self._url), *chosen]))

    def items(self) -> Iterator[Item]:
        """Streamed by the database, where its driver can."""
        with self._connected() as connection:
            streaming = connection.execution_options(stream_results=True, yield_per=_BATCH_ROWS)
            for number, row in enumerate(streaming.execute(self._listing())):
                yield self._item(number, *row)

    def read(self, item: Item) -> bytes:
        """Ask for the image by its key, or open its path."""
        if self._columns.path:
            return self._paths.read(item)
        key = key_from_json(json.loads(item.ref))
        if key is None:
            raise ImageError("no key", f"{item.uri}: the key is null"[:300], stage="read")
        rows = self._rows
        wanted = self._select(rows.c[self._columns.image]).where(rows.c[self._columns.key] == key)
        try:
            with self._connected() as connection:
                found = connection.execute(wanted).first()
        except StorageError as error:
            raise ImageError("database refused", str(error)[:300], stage="read") from None
        if found is None:
            raise ImageError("row not found", item.uri[:300], stage="read")
        return image_of(found[0], item.uri)

    def is_visible(self) -> bool:
        """Whether the file of the database, or the place of the paths in it, is there; servers are everywhere."""
        if self._columns.path:
            return is_seen(self._place)
        return self._file is None or disk.file_size(self._file) is not None

    def __getstate__(self) -> dict[str, Any]:
        local = ("_lock", "_engines", "_rows")
        state = {name: value for name, value in self.__dict__.items() if name not in local}
        return state | ({"_place": self._place} if self._columns.path else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[int, Any] = {}

    def _item(self, number: int, key: Any, path: Any = None) -> Item:
        text = key_text(key)
        if self._columns.path and path:
            return self._paths.item(str(path), text)
        named = text or f"row-{number}"
        ref = "" if self._columns.path else json.dumps(key_to_json(key))
        return make_item(named, uri=f"{self._public}#{named}", version="", ref=ref)

    @cached_property
    def _place(self) -> str | None:
        return self._paths.visible_place(str(row[1] or "") for row in self._first_rows(_LOOK_AT))

    def _first_rows(self, limit: int) -> list[Any]:
        with self._connected() as connection:
            return list(islice(connection.execute(self._listing().limit(limit)), limit))

    def _listing(self) -> Any:
        import sqlalchemy

        columns = [self._columns.key, self._columns.path]
        chosen = [self._rows.c[name].label(f"c{n}") if name else sqlalchemy.null() for n, name in enumerate(columns)]
        statement = self._select(*chosen)
        if self._config.where:
            statement = statement.where(sqlalchemy.text(f"(\n{_literal(self._config.where)}\n)"))
        return statement

    def _select(self, *columns: Any) -> Any:
        import sqlalchemy

        return sqlalchemy.select(*columns).select_from(self._rows)

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
    def _connected(self) -> Iterator[Any]:
        try:
            from sqlalchemy.exc import SQLAlchemyError
        except ImportError:
            raise MissingExtraError("SQLAlchemy", "sql") from None
        try:
            with self._engine().connect() as connection:
                yield connection
        except (SQLAlchemyError, ImportError) as error:
            message = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise StorageError(f"the database refused: {hide_parts(message, self._url)}") from None

    def _engine(self) -> Any:
        """One for each process, for connections do not survive a fork."""
        import sqlalchemy

        with self._lock:
            if os.getpid() not in self._engines:
                engine = sqlalchemy.create_engine(self._url, pool_pre_ping=True, max_overflow=-1)
                weakref.finalize(self, engine.dispose)
                self._engines[os.getpid()] = engine
            return self._engines[os.getpid()]


def _literal(sql: str) -> str:
    """SQL in which SQLAlchemy finds no parameters."""
    return sql.replace(":", "\\:")


def _database_file(url: str) -> str | None:
    """The file of a database that is one, as an absolute path."""
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtraError("SQLAlchemy", "sql") from None
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{without_secrets(url)!r} is not the URL of a database: dialect://user@host/name") from None
    is_file = parsed.get_backend_name() in ("sqlite", "duckdb") and parsed.database not in (None, "", ":memory:")
    return local_path(str(parsed.database)) if is_file else None


def _public(url: str, file: str | None) -> str:
    """What may be written down; a server may be named in the query, so only secret parameters are left out."""
    shown_url = f"{url.partition('://')[0]}:///{file}" if file else without_secrets(url)
    query = [(name, value) for name, value in parse_qsl(url.partition("?")[2]) if not looks_secret(name)]
    return f"{shown_url}?{urlencode(sorted(query), safe='/')}" if query and not file else shown_url
