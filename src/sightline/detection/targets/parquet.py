"""Parquet files in a directory: the default.

TARGET/
job.json                 which job this is; written first, never changed
images/CHUNK.parquet     the rows of a chunk; opens in DuckDB, pandas, Polars
plan/NUMBER.arrow        the generations of the plan
leases/CHUNK             who works on a chunk; its time is that of the last sign of life
manifest.json            counts, parameters and timings of the last run

Every file appears whole: it is written beside and linked into place, which fails if the name is taken, so the first
one wins. A name in `images` is a chunk that is done.
"""

import json
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sightline.data.disk import sync
from sightline.detection.schema import IMAGES, REJECTED
from sightline.detection.targets.lease import Lease, is_dead
from sightline.detection.targets.target import ClassCount, Owner, Summary
from sightline.errors import ConfigError, DamagedError, ExistsError, StorageError

JOB, MANIFEST, IMAGES_FOLDER = "job.json", "manifest.json", "images"
_PLAN, _LEASES, _PARTIAL = "plan", "leases", ".partial"
_FOLDERS = (IMAGES_FOLDER, _PLAN, _LEASES, _PARTIAL)


class ParquetTarget:
    """A directory that holds the detections of one job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

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
        try:
            if self._holds_something_else():
                raise ExistsError(f"{self.location!r} exists and holds no detections: take another --to")
            for folder in _FOLDERS:
                (self.directory / folder).mkdir(parents=True, exist_ok=True)
            self._create(Path(JOB), json.dumps(job, indent=2, ensure_ascii=False).encode())
        except OSError as error:
            raise StorageError(f"cannot write detections to {self.location!r}: {error}") from error
        found = read_json(self.directory / JOB)
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
        try:
            return (self.directory / _PLAN / f"{number:06d}.arrow").read_bytes()
        except FileNotFoundError:
            return None

    def publish(self, number: int, plan: bytes) -> bool:
        """See `Target.publish`."""
        return self._create(Path(_PLAN) / f"{number:06d}.arrow", plan)

    def committed(self) -> set[str]:
        """See `Target.committed`."""
        with os.scandir(self.directory / IMAGES_FOLDER) as listing:
            return {entry.name.removesuffix(".parquet") for entry in listing if entry.name.endswith(".parquet")}

    def claim(self, chunks: Sequence[str], owner: Owner, *, lease_s: float) -> dict[str, int]:
        """See `Target.claim`."""
        got = {}
        for chunk in chunks:
            if self._file(chunk).exists():
                continue
            attempts = self._claim(chunk, owner, lease_s)
            if attempts and self._file(chunk).exists():  # Committed, and its lease ended, between the two questions.
                self.release([chunk], owner)
            elif attempts:
                got[chunk] = attempts
        return got

    def _claim(self, chunk: str, owner: Owner, lease_s: float) -> int:
        attempts = 0
        lease = self._lease(chunk)
        while not self._create(lease, Lease.of(owner, attempts + 1).to_bytes(), durable=False):
            found = Lease.read(self.directory / lease)
            if found is None:
                continue  # It ended just now.
            if not found.is_over(lease_s):
                return 0
            attempts = max(attempts, found.attempts)
            # Of several that see an expired lease, one takes it away; all try again, and one gets the new one.
            self._take_away(lease)
        return attempts + 1

    def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
        """See `Target.renew`."""
        now = time.time()
        for chunk in chunks:
            try:
                os.utime(self.directory / self._lease(chunk), (now, now))
            except FileNotFoundError:
                continue  # Committed meanwhile.

    def release(self, chunks: Collection[str], owner: Owner) -> None:
        """See `Target.release`."""
        for chunk in chunks:
            found = Lease.read(self.directory / self._lease(chunk))
            if found and found.token == owner.token:
                (self.directory / self._lease(chunk)).unlink(missing_ok=True)

    def commit(self, chunk: str, rows: pa.Table) -> bool:
        """See `Target.commit`."""
        first = self._create(Path(IMAGES_FOLDER) / f"{chunk}.parquet", encode_rows(rows))
        (self.directory / self._lease(chunk)).unlink(missing_ok=True)
        return first

    def rewrite(self, chunk: str, rows: pa.Table) -> None:
        """See `Target.rewrite`."""
        before = pq.read_table(self._file(chunk), schema=IMAGES, partitioning=None)
        others = before.filter(pc.invert(pc.is_in(before.column("image_id"), rows.column("image_id").combine_chunks())))
        partial = self._write(encode_rows(pa.concat_tables([others, rows])))
        partial.rename(self._file(chunk))
        sync(self.directory / IMAGES_FOLDER)

    def rows(self, columns: Sequence[str], *, status: str | None = None) -> Iterator[pa.RecordBatch]:
        """See `Target.rows`."""
        wanted = list(dict.fromkeys([*columns, *(["status"] if status else [])]))
        for chunk in sorted(self.committed()):
            try:
                table = pq.read_table(
                    self._file(chunk), columns=wanted, schema=IMAGES, use_threads=False, partitioning=None
                )
            except (OSError, pa.ArrowException) as error:
                raise DamagedError(
                    f"{str(self._file(chunk))!r} cannot be read ({error}): remove it, and run the same command again"
                ) from None
            if status:
                table = table.filter(pc.equal(table.column("status"), status))
            yield from table.select(list(columns)).to_batches()

    def summary(self) -> Summary:
        """See `Target.summary`."""
        if not self.committed():
            return Summary(0, 0, 0, (), {})
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
        return read_json(self.directory / MANIFEST) if (self.directory / MANIFEST).exists() else None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """See `Target.write_manifest`."""
        text = json.dumps(manifest, indent=2, ensure_ascii=False, default=str)
        self._write(text.encode()).rename(self.directory / MANIFEST)

    def close(self) -> None:
        """Remove what killed runs of this machine left half-written."""
        for place in (self.directory / _PARTIAL).glob("*"):
            host, pid, _ = place.name.rsplit("-", 2)
            if is_dead(host, int(pid)):
                place.unlink(missing_ok=True)

    def _file(self, chunk: str) -> Path:
        return self.directory / IMAGES_FOLDER / f"{chunk}.parquet"

    def _lease(self, chunk: str) -> Path:
        return Path(_LEASES) / chunk

    def _create(self, name: Path, content: bytes, *, durable: bool = True) -> bool:
        """A file that is complete or absent; false if the name is taken."""
        partial = self._write(content, durable=durable)
        try:
            os.link(partial, self.directory / name)
        except FileExistsError:
            return False
        except OSError as error:
            raise StorageError(f"cannot write {name} in {self.location!r}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)
        if durable:
            sync((self.directory / name).parent)
        return True

    def _write(self, content: bytes, *, durable: bool = True) -> Path:
        partial = self.directory / _PARTIAL / Lease.unique_name()
        try:
            with open(partial, "wb") as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(f"cannot write detections to {self.location!r}: {error}") from error
        return partial

    def _take_away(self, lease: Path) -> None:
        gone = self.directory / _PARTIAL / Lease.unique_name()
        try:
            (self.directory / lease).rename(gone)
        except FileNotFoundError:
            return  # Another was quicker.
        gone.unlink(missing_ok=True)


def sql_text(text: str) -> str:
    """A text as SQL writes it, for where values cannot be bound.

    >>> sql_text("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


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
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{str(file)!r} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise DamagedError(f"{str(file)!r} is not what was written")
    return found


def encode_rows(rows: pa.Table) -> bytes:
    """Rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows.cast(IMAGES), sink, compression="zstd", write_statistics=True)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _difference(found: dict[str, Any], job: dict[str, Any]) -> str:
    """The first thing in which two jobs differ, for people."""
    for name, value in job.items():
        if name not in ("id", "created") and found.get(name) != value:
            return f"its {name} is {str(found.get(name))[:80]!r}, not {str(value)[:80]!r}"
    return "other settings"
