"""Parquet files in a directory: the default.

TARGET/
job.json                 which job this is; written first, never changed
images/CHUNK.parquet     the rows of a chunk (`row_file`); opens in DuckDB, pandas, Polars
plan/NUMBER.arrow        the generations of the plan
leases/CHUNK.N           who works on a chunk, in attempt N at it (`lease`)
leases/run-TOKEN         the sign of life of a run
locks/CHUNK              locked by whoever rewrites the rows of a chunk; empty
manifest.json            counts, parameters and timings of the last run
.partial/                files that are being written

Every file appears whole: it is written beside and linked into place, which fails if the name is taken, so the first
one wins. A name in `images` is a chunk that is done. Only a rewrite puts a file in place of another: under the lock of
the chunk, and if its rows are at the revision that was read.
"""

import json
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sightline.data.disk import says_it_may_pass
from sightline.detection.schema import BOX, DETECTIONS, IMAGES, REJECTED
from sightline.detection.targets.atomic_files import PARTIAL, AtomicFiles
from sightline.detection.targets.file_lock import locked, refuse_useless_locks
from sightline.detection.targets.lease import LEASES, FileLeases
from sightline.detection.targets.reader import SCALARS, ResultsOf, Views, sql_name, sql_text
from sightline.detection.targets.row_file import RowFile, describe_rows, encode_rows, read_rows
from sightline.detection.targets.target import ClassCount, Owner, StoredChunk, Summary, rewrite_lease
from sightline.errors import ConfigError, DamagedError, ExistsError, StorageError
from sightline.process_identity import unique_name
from sightline.retry import STORAGE_RETRY
from sightline.workspace import Workspace

JOB, MANIFEST, IMAGES_FOLDER = "job.json", "manifest.json", "images"
_PLAN, _LOCKS = "plan", "locks"
_FOLDERS = (IMAGES_FOLDER, _PLAN, LEASES, _LOCKS, PARTIAL)


class ParquetTarget:
    """A directory that holds the detections of one job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = AtomicFiles(directory)
        self._leases = FileLeases(self._files)
        self._has_locks = False

    @property
    def location(self) -> str:
        """Its path."""
        return str(self.directory)

    def open(self, job: dict[str, Any]) -> None:
        """See `Target.open`."""
        if "\\" in self.location:
            raise ConfigError(
                f"{self.location!r} contains a backslash, and DuckDB cannot list such a directory: choose a target and "
                "a workspace without one"
            )
        if self._files.retried("write detections", self._holds_something_else):
            raise ExistsError(f"{self.location!r} exists and holds no detections: take another --to")
        self._files.make_folders(_FOLDERS)
        self._files.create(JOB, json.dumps(job, indent=2, ensure_ascii=False).encode())
        found = self._read_json(JOB) or {}
        if found.get("id") != job["id"]:
            raise ExistsError(
                f"{self.location!r} holds the detections of another job ({_difference(found, job)}): take another --to"
            )

    def _holds_something_else(self) -> bool:
        """Files of others, and no job; another run of the same job may be making the folders at this moment."""
        if not self.directory.exists() or (self.directory / JOB).exists():
            return False
        return bool({place.name for place in self.directory.iterdir()} - {*_FOLDERS, JOB})

    def generation(self, number: int) -> bytes | None:
        """See `Target.generation`."""
        return self._files.read(_generation(number), revalidate=True)

    def publish(self, number: int, plan: bytes) -> bool:
        """See `Target.publish`."""
        return self._files.create(_generation(number), plan)

    def committed(self) -> set[str]:
        """See `Target.committed`."""
        names = self._files.retried("list chunks", lambda: os.listdir(self.directory / IMAGES_FOLDER))  # noqa: PTH208
        return {name.removesuffix(".parquet") for name in names if name.endswith(".parquet")}

    def claim(self, chunks: Sequence[str], owner: Owner, *, lease_s: float) -> dict[str, int]:
        """See `Target.claim`."""
        got = {}
        for chunk in chunks:
            if self._is_committed(chunk):
                continue
            attempts = self._leases.claim(chunk, owner, lease_s)
            if attempts and self._is_committed(chunk):  # It was, and its leases ended, between the two questions.
                self._leases.end(chunk)
            elif attempts:
                got[chunk] = attempts
        return got

    def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
        """See `Target.renew`; a run has one sign of life for all of its leases."""
        if chunks:
            self._leases.touch(owner)

    def release(self, chunks: Collection[str], owner: Owner) -> None:
        """See `Target.release`."""
        for chunk in chunks:
            self._leases.release(chunk, owner)

    def commit(self, chunk: str, rows: pa.Table, owner: Owner) -> bool:
        """See `Target.commit`."""
        is_first = self._files.create(_rows(chunk), encode_rows(rows, writer=owner.token))
        self._leases.end(chunk)
        return is_first or self._described(chunk).writer == owner.token

    def rewrite(self, chunk: str, rows: pa.Table, owner: Owner, *, revision: int) -> bool:
        """See `Target.rewrite`."""
        self._refuse_useless_locks()
        writer = f"{owner.token}.{secrets.token_hex(8)}"
        lock = self.directory / _LOCKS / chunk

        def swap() -> bool:
            with locked(lock):
                return self._swap(chunk, rows, revision, writer)

        is_done = self._files.retried(f"write {_rows(chunk)}", swap)
        if is_done:
            self._leases.end_own(rewrite_lease(chunk), owner)
        return is_done

    def _swap(self, chunk: str, rows: pa.Table, revision: int, writer: str) -> bool:
        try:
            found, before = read_rows(self.directory / _rows(chunk), IMAGES.names)
        except FileNotFoundError:
            return False
        if (found.revision, found.writer) == (revision + 1, writer):
            return True  # It was done already, and the answer was lost.
        if found.revision != revision:
            return False
        others = before.filter(pc.invert(pc.is_in(before.column("image_id"), rows.column("image_id").combine_chunks())))
        table = pa.concat_tables([others, rows.cast(IMAGES)])
        self._files.replace_now(_rows(chunk), encode_rows(table, revision=revision + 1, writer=writer))
        return True

    def _refuse_useless_locks(self) -> None:
        if self._has_locks:
            return
        file = self.directory / _LOCKS / f".{unique_name()}"
        try:
            self._files.retried("lock a file", lambda: refuse_useless_locks(file))
        finally:
            with suppress(OSError):
                file.unlink(missing_ok=True)
        self._has_locks = True

    def stored(self) -> Iterator[StoredChunk]:
        """See `Target.stored`."""
        for chunk in sorted(self.committed()):
            found = self._described(chunk)
            yield StoredChunk(chunk, found.ids, found.revision, found.num_images)

    def read_chunk(self, chunk: str, columns: Sequence[str]) -> tuple[int, pa.Table]:
        """See `Target.read_chunk`."""
        found, table = self._read(chunk, columns)
        return found.revision, table

    def rows(self, columns: Sequence[str], *, status: str | None = None) -> Iterator[pa.RecordBatch]:
        """See `Target.rows`."""
        wanted = list(dict.fromkeys([*columns, *(["status"] if status else [])]))
        for chunk in sorted(self.committed()):
            table = self._read(chunk, wanted)[1]
            if status:
                table = table.filter(pc.equal(table.column("status"), status))
            yield from table.select(list(columns)).to_batches()

    def _read(self, chunk: str, columns: Sequence[str]) -> tuple[RowFile, pa.Table]:
        file = self.directory / _rows(chunk)
        return self._files.retried(f"read {_rows(chunk)}", lambda: read_rows(file, columns))

    def _described(self, chunk: str) -> RowFile:
        file = self.directory / _rows(chunk)
        return self._files.retried(f"read {_rows(chunk)}", lambda: describe_rows(file))

    def _is_committed(self, chunk: str) -> bool:
        return self._files.retried(f"find {_rows(chunk)}", (self.directory / _rows(chunk)).exists)

    def summary(self) -> Summary:
        """See `Target.summary`."""
        if not self.committed():
            return Summary(0, 0, 0, (), {})
        try:
            return STORAGE_RETRY.call(
                self._summarize,
                what=f"an attempt to count the rows in {self.location!r}",
                passes=lambda error: isinstance(error, duckdb.Error) and says_it_may_pass(str(error)),
            )
        except duckdb.Error as error:
            raise StorageError(
                f"cannot count the rows in {self.location!r}: {error}; mend that, then run the same command again"
            ) from None

    def _summarize(self) -> Summary:
        with duckdb.connect() as database:
            rows = scan_images(self.directory)
            counts = database.execute(
                f"select count(*), count(*) filter (status = '{REJECTED}'), sum(num_detections) from {rows}"
            ).fetchone()
            reasons = database.execute(
                f"select reason, count(*) from {rows} where status = '{REJECTED}' group by 1 order by 2 desc, 1"
            ).fetchall()
            classes = database.execute(
                "select box.label, count(*), count(distinct image_id), avg(box.score) "
                f"from (select image_id, unnest(boxes) as box from {rows}) group by 1 order by 2 desc, 1"
            ).fetchall()
        assert counts is not None
        images, rejected, found = (int(count or 0) for count in counts)
        return Summary(images, rejected, found, tuple(ClassCount(*row) for row in classes), dict(reasons))

    def read_manifest(self) -> dict[str, Any] | None:
        """See `Target.read_manifest`."""
        return self._read_json(MANIFEST)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """See `Target.write_manifest`."""
        self._files.replace(MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False, default=str).encode())

    def _read_json(self, name: str) -> dict[str, Any] | None:
        text = self._files.read(name)
        return None if text is None else _parse_json(text, self.directory / name)

    def close(self) -> None:
        """Remove what this run, and killed runs of this machine, left."""
        self._leases.close()
        self._files.remove_abandoned()


class ParquetReader:
    """Reads the files of a directory, which may grow meanwhile."""

    is_shared = True

    def __init__(self, results: ResultsOf) -> None:
        self._results, self._directory = results, Path(results.target)

    def obstacle(self, workspace: Workspace) -> str:
        """See `Reader.obstacle`."""
        return ""

    def has_rows(self) -> bool:
        """See `Reader.has_rows`."""
        return any((self._directory / IMAGES_FOLDER).glob("*.parquet"))

    def attach(self, database: duckdb.DuckDBPyConnection, *, restricted: bool) -> Views:
        """See `Reader.attach`."""
        database.execute("set parquet_metadata_cache = true")  # A job may have thousands of files.
        table = self._register(database) if restricted else scan_images(self._directory, filename=True)
        boxes = {field.name: f"box.{field.name}" for field in BOX}
        columns = ", ".join(f"{boxes.get(name, name)} as {name}" for name in DETECTIONS.names)
        return Views(
            images=f"select {', '.join(SCALARS)} from {table}",
            detections=f"select {columns} from "
            f"(select image_id, uri, model, model_version, unnest(boxes) as box from {table})",
            rows=f"select * from {table}",
        )

    def rows_in(self, files: Sequence[str]) -> str | None:
        """See `Reader.rows_in`."""
        return scan_images(self._directory, sorted({Path(file).name for file in files}))

    def _register(self, database: duckdb.DuckDBPyConnection) -> str:
        """The same rows as an Arrow dataset: DuckDB needs no access to files to read it."""
        import pyarrow.dataset as ds

        files = sorted(map(str, (self._directory / IMAGES_FOLDER).glob("*.parquet")))
        name = f"rows of {self._results.name}"
        database.register(name, ds.dataset(files, schema=IMAGES, format="parquet"))
        return f"(select *, '' as filename from {sql_name(name)})"


def _rows(chunk: str) -> str:
    return f"{IMAGES_FOLDER}/{chunk}.parquet"


def _generation(number: int) -> str:
    return f"{_PLAN}/{number:06d}.arrow"


def scan_images(directory: Path, files: Iterable[str] = (), *, filename: bool = False) -> str:
    """The DuckDB table function that reads the rows of a target.

    Every reader goes through this function. The directory is taken literally, whatever characters its path has, and a
    folder named `column=value` is not taken for a Hive partition.

    Args:
        files: Names of files in `images`; default: all that are there when the query runs.
        filename: Add a column with the path of the file.
    """
    folder = _glob_literal(str(directory / IMAGES_FOLDER))
    patterns = [f"{folder}/{_glob_literal(file)}" for file in files] or [f"{folder}/*.parquet"]
    listed = ", ".join(map(sql_text, patterns))
    return f"read_parquet([{listed}], hive_partitioning = false, filename = {str(filename).lower()})"


def _glob_literal(path: str) -> str:
    """A glob pattern that matches exactly this path."""
    return re.sub(r"[\[*?]", lambda found: f"[{found[0]}]", path)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object that was written by us."""
    try:
        return _parse_json(file.read_bytes(), file)
    except OSError as error:
        raise DamagedError(f"{str(file)!r} cannot be read: {error}") from None


def _parse_json(text: bytes, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DamagedError(f"{str(file)!r} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DamagedError(f"{str(file)!r} is not what was written")
    return found


def _difference(found: dict[str, Any], job: dict[str, Any]) -> str:
    """The first thing in which two jobs differ, for people."""
    for name, value in job.items():
        if name not in ("id", "created") and found.get(name) != value:
            return f"its {name} is {str(found.get(name))[:80]!r}, not {str(value)[:80]!r}"
    return "other settings"
