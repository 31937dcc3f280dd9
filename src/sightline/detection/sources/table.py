"""Images in Parquet or Arrow files: bytes, base64, Hugging Face's {bytes, path}, or paths."""

import posixpath
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa

from sightline.config import SourceConfig
from sightline.data.formats.layout import is_image
from sightline.detection.item import Item, id_of
from sightline.detection.sources.columns import ROW_NUMBER, Columns, image_of, key_text, settings_text
from sightline.detection.sources.keys import UniqueKeys
from sightline.detection.sources.names import from_ref, make_item, open_folder, shown, to_ref, version_of
from sightline.detection.sources.paths import PathReader, is_seen
from sightline.detection.sources.source_file import SourceFile
from sightline.detection.sources.table_files import UNREADABLE, RowReader, TableFile, open_table
from sightline.detection.sources.walk import file_version, list_patiently
from sightline.detection.sources.where import Condition
from sightline.errors import FormatError, ImageError


class TableSource:
    """The rows of one or several files of a folder, in the order of the files' names.

    A row is read again by file, row group and number in it; that it is still the same row is seen by its key.

    Args:
        location: The folder.
        files: Names in it.
        is_folder: Whether the folder is meant, in which files may be added.

    Attributes:
        name: The place, and the settings that choose columns and rows.
    """

    def __init__(self, location: str, files: list[str], config: SourceConfig, *, is_folder: bool) -> None:
        self._folder, self._public = open_folder(location)
        self._files, self._config, self._is_folder = files, config, is_folder
        first = self._open_first()
        self._columns = self._find_columns(first)
        self._condition(first)
        self._paths = PathReader(config.root or location)
        place = self._public if is_folder else posixpath.join(self._public, files[0])
        self.name = shown(" ".join([place, *settings_text(config, "image", "path", "key", "where")]))

    def items(self) -> Iterator[Item]:
        """Streams the key or path, and what a condition needs; images are not touched.

        Raises:
            FormatError: A table is damaged, or two rows have the same key.
        """
        with closing(self._keys()) as keys:
            items = chain.from_iterable(self._items_of(file, keys) for file in self._files)
            yield from self._paths.with_versions(items) if self._columns.path else items

    def read(self, item: Item) -> bytes:
        """The image in a cell, or the file that a path names."""
        if self._columns.path:
            return self._paths.read(item)
        group, row, file = item.ref.split(":", 2)
        cells = self._rows.row(from_ref(file), int(group), int(row))
        key = key_text(cells[self._columns.key]) if self._columns.key else None
        if key is not None and id_of(key) != item.image_id:
            raise ImageError("table was changed", f"row {row} now has the key {key!r}"[:300], stage="read")
        return self._image(cells[self._columns.image or ""], item)

    def is_visible(self) -> bool:
        """Whether the table is there; if it holds paths, whether their place is."""
        if self._columns.path:
            return is_seen(self._place)
        return not self._folder.is_local or self._folder.is_file(self._files[0])

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_rows"}
        return state | ({"_place": self._place} if self._columns.path else {})

    @cached_property
    def _rows(self) -> RowReader:
        return RowReader(self._file, [name for name in (self._columns.image, self._columns.key) if name])

    @cached_property
    def _place(self) -> str | None:
        texts = (text for file in self._files for text in self._path_texts(file))
        return self._paths.visible_place(texts)

    def _keys(self) -> UniqueKeys:
        remedy = f"name a column without such values in source.key, or say source.key = '{ROW_NUMBER}'"
        return UniqueKeys(where=repr(self.name), column=self._columns.key or "", remedy=remedy)

    def _items_of(self, file: str, keys: UniqueKeys) -> Iterator[Item]:
        version = self._version(file)
        table = posixpath.join(self._public, file)
        names = sorted({name for name in (self._columns.key, self._columns.path) if name})
        number = 0
        try:
            for group, row, total, cells in self._cells(file, names):
                number = total
                key = key_text(cells.get(self._columns.key or ""))
                if key is not None:
                    keys.add(key, f"row {total} of {file!r}")
                path = cells.get(self._columns.path or "")
                if path:
                    yield self._paths.item(str(path), key)
                    continue
                key = key or (f"{file}-row-{total}" if self._is_folder else f"row-{total}")
                ref = "" if self._columns.path else f"{group}:{row}:{to_ref(file)}"
                yield make_item(key, uri=f"{table}#{key}", version=version, ref=ref)
        except UNREADABLE as error:
            raise FormatError(f"{table!r} cannot be read as a table, near row {number}: {error}") from None

    def _file(self, name: str) -> SourceFile:
        return SourceFile(self._folder, name, public=posixpath.join(self._public, name))

    def _open(self, name: str) -> TableFile:
        """To list it, which goes on where it failed."""
        return open_table(self._file(name).reader(patient=True), name)

    def _cells(self, file: str, names: list[str]) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
        """Group, row in it, row in the file and cells of the rows that are wanted."""
        table = self._open(file)
        self._check_schema(table, file)
        condition = self._condition(table)
        columns = sorted({*names, *(condition.columns if condition else ())})
        first = 0
        for group in range(table.num_groups):
            start = 0
            for batch in table.batches(group, columns) if columns else [_blank(table.num_rows(group))]:
                lists = {name: batch.column(name).to_pylist() for name in names}
                for row in condition.rows(batch) if condition else range(batch.num_rows):
                    cells = {name: values[row] for name, values in lists.items()}
                    yield group, start + row, first + start + row, cells
                start += batch.num_rows
            first += start

    def _condition(self, table: TableFile) -> Condition | None:
        others = pa.schema([field for field in table.schema if field.name != self._columns.image])
        return Condition(self._config.where, others) if self._config.where else None

    def _image(self, cell: Any, item: Item) -> bytes:
        if isinstance(cell, dict):  # Hugging Face's layout
            if cell.get("bytes") is None and isinstance(cell.get("path"), str):
                return self._paths.read(self._paths.item(cell["path"]))
            cell = cell.get("bytes")
        return image_of(cell, item.uri)

    def _open_first(self) -> TableFile:
        try:
            return open_table(self._file(self._files[0]).reader(patient=False), self._files[0])
        except UNREADABLE as error:
            raise FormatError(
                f"{posixpath.join(self._public, self._files[0])!r} cannot be read as a table: {error} (of Arrow's two "
                "forms the file is read, not the stream)"
            ) from None

    def _find_columns(self, table: TableFile) -> Columns:
        place = repr(posixpath.join(self._public, self._files[0]))
        return Columns.find(
            table.schema.names,
            self._config,
            where=place,
            holds_images=lambda name: _holds_images(table, name),
            numbered=True,
        )

    def _check_schema(self, table: TableFile, file: str) -> None:
        needed = [name for name in (self._columns.image, self._columns.path, self._columns.key) if name]
        missing = [name for name in needed if name not in table.schema.names]
        if missing:
            raise FormatError(f"{posixpath.join(self._public, file)!r} has no column {missing[0]!r} as others do")

    def _path_texts(self, file: str) -> Iterator[str]:
        name = self._columns.path or ""
        return (str(cells[name] or "") for *_, cells in self._cells(file, [name]))

    def _version(self, file: str) -> str:
        path = self._folder.full_path(file)
        if self._folder.is_local:
            return file_version(path)
        info = list_patiently(lambda: self._folder.filesystem.get_file_info(path), what=self._folder.location)
        return version_of(info.size, info.mtime_ns)


def _blank(num_rows: int) -> pa.RecordBatch:
    """A batch of which nothing but its length matters."""
    return pa.record_batch([pa.nulls(num_rows)], names=["none"])


def _holds_images(table: TableFile, name: str) -> bool:
    kind = table.schema.field(name).type
    if pa.types.is_struct(kind):
        return int(kind.get_field_index("bytes")) >= 0
    if "string" in str(kind) or "utf8" in str(kind):
        return not _begins_with_path(table, name)
    return "binary" in str(kind)


def _begins_with_path(table: TableFile, name: str) -> bool:
    for group in range(table.num_groups):
        for batch in table.batches(group, [name], bounded=True):
            first = next((cell for cell in batch.column(name).to_pylist() if cell), None)
            if first is not None:
                return is_image(first)
    return False
