"""All targets. A new kind is one file and one line here."""

from pathlib import Path

from sightline.data.formats.factory import is_database
from sightline.data.location import BUCKET_SCHEMES
from sightline.detection.targets.parquet import JOB, ParquetReader, ParquetTarget
from sightline.detection.targets.reader import Reader, ResultsOf
from sightline.detection.targets.target import Target
from sightline.errors import ConfigError
from sightline.workspace import Workspace, check_name, is_location

DUCKDB_SUFFIXES = (".duckdb", ".ddb")

_COPIED = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet"}
"""Of files that DuckDB writes by their suffix."""
_FILE_SUFFIXES = _COPIED | {".arrow", ".feather", ".pq", ".avro", ".orc", ".xml", ".html", ".xls", ".xlsx", ".yaml"}
_FILE_SUFFIXES |= {".db", ".sqlite", ".sqlite3", ".sql", ".zip", ".tar", ".gz", ".tgz", ".zst", ".pkl", ".log", ".md"}


def open_target(to: str, workspace: Workspace, *, table_prefix: str = "") -> Target:
    """The place that is meant: a name, a directory, a DuckDB file or the URL of a database."""
    if is_database(to):
        return _database(to, table_prefix)
    if "://" in to and not to.startswith("file://"):
        known = "databases, DuckDB files and local directories"
        scheme = to.partition("://")[0]
        if scheme in BUCKET_SCHEMES:
            raise ConfigError(f"detections are not written to buckets ({scheme}://) yet: {known} are")
        raise ConfigError(f"{scheme}:// is no place for detections: {known} are")
    path = to.removeprefix("file://")
    if is_duckdb(path):
        return _duckdb(Path(path).expanduser(), table_prefix)
    place = Path(path).expanduser() if is_location(path) else workspace.detections / check_name(path)
    _refuse_file(to, place)
    return ParquetTarget(place.absolute())


def open_reader(results: ResultsOf) -> Reader:
    """What reads the results of a job, by where its rows are."""
    if "://" in results.target:
        from sightline.detection.targets.sqlalchemy_database import DatabaseReader

        return DatabaseReader(results)
    if is_duckdb(results.target):
        from sightline.detection.targets.duckdb_file import DuckDBReader

        return DuckDBReader(results)
    return ParquetReader(results)


def is_duckdb(location: str) -> bool:
    """Whether a location is a DuckDB file."""
    return location.lower().endswith(DUCKDB_SUFFIXES)


def _refuse_file(to: str, place: Path) -> None:
    """Detections are a directory; who names a file expects a file."""
    suffix = place.suffix.lower()
    if (place / JOB).is_file() or not (suffix in _FILE_SUFFIXES or place.is_file()):
        return
    file = f"out{suffix}" if suffix in _COPIED else "out.csv"
    raise ConfigError(
        f"--to {to!r} names a file, and detections are not written to one of that kind: give a name, a directory such "
        "as ./out, a .duckdb file or the URL of a database such as sqlite:///out.sqlite. For a single file, run "
        f"`sightline query \"copy detections to '{file}'\" --job NAME` afterwards"
    )


def _database(url: str, prefix: str) -> Target:
    from sightline.detection.targets.database import DatabaseTarget
    from sightline.detection.targets.sqlalchemy_database import SQLDatabase

    return DatabaseTarget(SQLDatabase(url), prefix=prefix)


def _duckdb(file: Path, prefix: str) -> Target:
    from sightline.detection.targets.database import DatabaseTarget
    from sightline.detection.targets.duckdb_file import DuckDBFile

    return DatabaseTarget(DuckDBFile(file.absolute()), prefix=prefix)
