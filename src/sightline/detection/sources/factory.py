"""What a source is: the one place that names every kind."""

import posixpath
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.config import SourceConfig
from sightline.data.formats.factory import is_database
from sightline.data.formats.table_rows import SUFFIXES as INGEST_TABLES
from sightline.data.schema import MANIFEST, has_manifest
from sightline.data.storage import Folder, ask_patiently
from sightline.detection.item import Source
from sightline.detection.sources import archive, listing, table_files
from sightline.detection.sources.archive import ArchiveSource
from sightline.detection.sources.dataset import DatasetSource
from sightline.detection.sources.folder import FolderSource
from sightline.detection.sources.glob import GlobSource, has_wildcard, split_pattern
from sightline.detection.sources.lenient import Lenient
from sightline.detection.sources.limited import Limited
from sightline.detection.sources.listing import ListFileSource, ListSource
from sightline.detection.sources.names import open_folder, public_url, scheme_of
from sightline.detection.sources.paths import split_file
from sightline.detection.sources.sql import SqlSource
from sightline.detection.sources.table import TableSource
from sightline.detection.sources.walk import peek
from sightline.errors import ConfigError, FormatError, NotFoundError
from sightline.workspace import Workspace, check_name, is_location

Opened = tuple[Source, str]

_VIDEOS = {".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp", ".mts", ".m2ts"}

_SETTINGS = {
    "database": {"where", "query", "image", "path", "key", "root"},
    "table": {"where", "image", "path", "key", "root"},
    "dataset": {"where"},
    "list": {"root"},
}
"""Which settings a kind of source has; the others have none but `limit`."""


def open_source(
    source: str | Path | Sequence[str | Path] | FolderSource, config: SourceConfig, workspace: Workspace
) -> Opened:
    """Open images to look at; returns the source, and what it was taken for and why.

    A `FolderSource` is taken as it is, for callers that must not have a path interpreted in any other way.

    Raises:
        NotFoundError: There is no such thing.
        ConfigError: A setting does not fit the kind of source.
    """
    opened, why = _open(source, config, workspace)
    opened = Lenient(opened) if config.missing == "reject" else opened
    return (Limited(opened, config.limit), f"the first {config.limit} of {why}") if config.limit else (opened, why)


def _open(
    source: str | Path | Sequence[str | Path] | FolderSource, config: SourceConfig, workspace: Workspace
) -> Opened:
    if isinstance(source, FolderSource):
        _check_settings("folder", config)
        return source, "a folder of images"
    if not isinstance(source, str | Path):
        _check_settings("list", config)
        return ListSource(source, config.root), f"a list of {len(source)} paths"
    text = str(source)
    if not text:
        raise ConfigError("the source is empty: give a folder, a file, a pattern, a dataset or a database URL")
    if is_database(text):
        _check_settings("database", config)
        return SqlSource(text, config), "a database query"
    if isinstance(source, str) and (location := _dataset_named(text, workspace)):
        _check_settings("dataset", config)
        return DatasetSource(location, config.where), "a dataset of the workspace"
    if has_wildcard(text) and not _is_there(text):
        return _open_pattern(text, config)
    folder, _ = open_folder(text)
    if ask_patiently(folder.is_folder, what=f"opening {_public(text)}"):
        return _open_folder(text, folder, config)
    if not _is_there(text):
        raise _not_found(text)
    return _open_file(text, config)


def _open_folder(text: str, folder: Folder, config: SourceConfig) -> Opened:
    if has_manifest(folder):
        _check_settings("dataset", config)
        return DatasetSource(text, config.where), f"a dataset, for it holds {MANIFEST}"
    if tables := _only_tables(folder):
        _check_settings("table", config)
        return TableSource(text, tables, config, is_folder=True), f"a table, for it holds {tables[0]}"
    _check_settings("folder", config)
    return FolderSource(text), "a folder of images"


def _open_file(text: str, config: SourceConfig) -> Opened:
    place, name = split_file(text)
    lower = name.lower()
    suffix = posixpath.splitext(lower)[1]
    kinds: list[tuple[str, tuple[str, ...], Callable[[], Source]]] = [
        ("archive", archive.SUFFIXES, lambda: ArchiveSource(text)),
        ("table", table_files.SUFFIXES, lambda: TableSource(place, [name], config, is_folder=False)),
        ("list", listing.SUFFIXES, lambda: ListFileSource(text, config.root)),
    ]
    for kind, suffixes, make in kinds:
        if lower.endswith(suffixes):
            _check_settings(kind, config)
            return make(), f"a{'n' if kind == 'archive' else ''} {kind}, by its suffix {suffix}"
    if lower.endswith((*INGEST_TABLES, ".json")):
        raise FormatError(
            f"{text!r}: images are not read from {suffix} files; give a table as .parquet or .arrow, or paths as .txt "
            "with one a line"
        )
    if suffix in _VIDEOS:
        raise FormatError(
            f"{text!r} is a video, and images are looked for: extract its frames first, for example with "
            f"`mkdir frames && ffmpeg -i {shlex.quote(name)} frames/%06d.jpg`, and give the folder"
        )
    _check_settings("image", config)
    return ListSource([name], place), "a single image"


def _open_pattern(text: str, config: SourceConfig) -> Opened:
    _check_settings("pattern", config)
    root, _ = split_pattern(text)
    folder, public = open_folder(root)
    if not ask_patiently(folder.is_folder, what=f"opening {public}"):
        raise NotFoundError(f"nothing matches {_public(text)!r}: the folder {public!r} does not exist")
    return GlobSource(text), "images that match a pattern"


def _dataset_named(text: str, workspace: Workspace) -> str | None:
    """Where the dataset of this name lies, if it is the name of one."""
    if is_location(text):
        return None
    try:
        location = str(workspace.datasets / check_name(text))
    except ConfigError:
        return None
    return location if has_manifest(Folder.open(location)) else None


def _is_there(text: str) -> bool:
    """Whether there is such a file or folder; a URL with a wildcard ? could not even be asked for."""
    if scheme_of(text) not in (None, "file") and "?" in _public(text):
        return False
    place, name = split_file(text)
    folder, _ = open_folder(place)
    return ask_patiently(lambda: folder.is_file(name) or folder.is_folder(name), what=f"opening {_public(text)}")


def _only_tables(folder: Folder) -> list[str]:
    """The table files of a folder, if it holds nothing else; notes of those who wrote it (_SUCCESS) do not count."""
    found = []
    for name, is_folder in peek(folder):
        if is_folder or not name.lower().endswith(table_files.SUFFIXES):
            if name.startswith("_"):
                continue
            return []
        found.append(name)
    return sorted(found)


def _check_settings(kind: str, config: SourceConfig) -> None:
    allowed = _SETTINGS.get(kind, set())
    for name in ("where", "query", "image", "path", "key", "root"):
        value = getattr(config, name)
        if value is not None and name not in allowed:
            having = [other for other, names in _SETTINGS.items() if name in names]
            raise ConfigError(
                f"source.{name} = {_public(value)!r} means nothing for a source of kind {kind}: it is for "
                f"{' and '.join(having)}; leave it out"
            )


def _public(text: str) -> str:
    return public_url(text) if scheme_of(text) else text


def _not_found(text: str) -> NotFoundError:
    shown = _public(text)
    if is_location(text):
        return NotFoundError(f"{shown!r} does not exist: give a folder, a file, a pattern, a dataset or a database URL")
    return NotFoundError(
        f"{shown!r} is no dataset of the workspace, file or folder: `sightline datasets` lists the datasets there are"
    )
