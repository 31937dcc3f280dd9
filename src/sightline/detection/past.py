"""Past jobs of a workspace, and SQL over what they found.

Each target of a job has a directory `detections/NAME` in the workspace: its rows as Parquet, or, if they went
elsewhere, only the manifest that says where. (Earlier versions had one for all targets of a job, so it may be both.)
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sightline.data.atomic import replacing_file
from sightline.detection.job import Job, slug
from sightline.detection.restricted import SETTINGS, restrict
from sightline.detection.targets.factory import is_duckdb, open_reader
from sightline.detection.targets.parquet import JOB, MANIFEST, read_json
from sightline.detection.targets.reader import Reader, ResultsOf, sql_text
from sightline.detection.trust import trust
from sightline.errors import ConfigError, DamagedError, NotFoundError
from sightline.workspace import Workspace


@dataclass(frozen=True)
class PastJob:
    """A job of the workspace.

    Attributes:
        target: Where its rows are.
        finished: When its last run ended, in ISO 8601; None if none has ended yet.
        images: Rows, when its last run ended.
        prefix: What the names of its tables begin with, in a database.
    """

    name: str
    id: str
    source: str
    model: str
    target: str
    finished: str | None
    images: int
    rejected: int
    detections: int
    prefix: str = ""

    def reader(self) -> Reader:
        """What reads its rows."""
        return open_reader(ResultsOf(self.name, self.id, self.target, self.prefix))


def list_jobs(workspace: Workspace) -> list[PastJob]:
    """All jobs, the last finished first."""
    places = sorted(workspace.detections.iterdir()) if workspace.detections.is_dir() else []
    found = [job for place in places for job in _read(place)]
    return sorted(found, key=lambda job: job.finished or "", reverse=True)


def name_elsewhere(workspace: Workspace, job: Job, target: str, *, prefix: str) -> str:
    """What a job is called whose rows are not in the workspace: as before, else by the job and its target."""
    for place in sorted(workspace.detections.iterdir()) if workspace.detections.is_dir() else []:
        with suppress(DamagedError):  # Of another job, perhaps.
            for known in _read(place):
                if (known.id, known.target, known.prefix) == (job.id, target, prefix):
                    return known.name
    return _free_name(workspace, job.usual_name, target, prefix)


def make_room(workspace: Workspace, name: str) -> None:
    """Before rows are written to the workspace under a name: rows elsewhere that have it are listed under another."""
    place = workspace.detections / name
    manifest = _manifest(place)
    if not _is_elsewhere(place, manifest):
        return
    prefix = manifest.get("table_prefix", "")
    other = _free_name(workspace, name, manifest["target"], prefix)
    if (place / JOB).is_file():
        record(workspace, other, manifest, prefix=prefix)
        (place / MANIFEST).unlink()
    else:
        place.rename(workspace.detections / other)


def _free_name(workspace: Workspace, base: str, target: str, prefix: str) -> str:
    name = f"{base}-{slug(target)}"
    if not (workspace.detections / name).exists():
        return name
    return f"{name}-{hashlib.sha256(f'{target} {prefix}'.encode()).hexdigest()[:6]}"


def record(workspace: Workspace, name: str, manifest: dict[str, Any], *, prefix: str) -> None:
    """Note a job whose rows are not in the workspace."""
    place = workspace.detections / name
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**manifest, "table_prefix": prefix}, indent=2, ensure_ascii=False, default=str)
    with replacing_file(place / MANIFEST) as partial:
        partial.write_text(text, "utf-8")


def query_jobs(
    jobs: list[PastJob], sql: str, workspace: Workspace, *, limit: int | None = None, restricted: bool = False
) -> pa.Table:
    """Run a query over the views `images` and `detections` of some jobs; both have a column `job`.

    Raises:
        ConfigError: The query is wrong; the message is DuckDB's.
    """
    try:
        with open_jobs(jobs, workspace, restricted=restricted) as database:
            found = database.sql(sql)
            if found is None:
                return pa.table({})
            return (found.limit(limit) if limit is not None else found).to_arrow_table()
    except duckdb.Error as error:
        raise ConfigError(f"the query failed: {error}") from None


def open_jobs(jobs: list[PastJob], workspace: Workspace, *, restricted: bool = False) -> duckdb.DuckDBPyConnection:
    """A database with the views `images` and `detections` of some jobs, and `rows`, with the boxes in their images.

    Jobs that cannot be opened are left out if there are others; `left_out` says which and why.

    Args:
        restricted: For SQL that the user did not write: it sees these views and nothing else.

    Raises:
        NotFoundError: None of them has rows yet.
        ConfigError: None of them can be opened.
    """
    readers = {job.name: job.reader() for job in jobs}
    reasons = left_out(jobs, workspace)
    usable = {name: reader for name, reader in readers.items() if name not in reasons and reader.has_rows()}
    if not usable and reasons:
        raise ConfigError("; ".join(reasons.values()))
    if not usable:
        raise NotFoundError("there are no detections yet: `sightline detect MODEL SOURCE` makes some")
    database = duckdb.connect(config=SETTINGS if restricted else {})
    try:
        database.execute("set timezone = 'UTC'")
        views = {name: reader.attach(database, restricted=restricted) for name, reader in usable.items()}
        for view in ("images", "detections", "rows"):
            selects = " union all by name ".join(
                f"select {sql_text(name)} as job, * from ({getattr(own, view)})" for name, own in views.items()
            )
            database.execute(f"create view {view} as {selects}")
        if restricted:
            restrict(database)
    except duckdb.Error:
        database.close()
        raise
    return database


def left_out(jobs: list[PastJob], workspace: Workspace) -> dict[str, str]:
    """Why the rows of some jobs cannot be queried here, by the names of these jobs."""
    reasons = {job.name: _why_left_out(job, workspace) for job in jobs}
    return {name: reason for name, reason in reasons.items() if reason}


def _why_left_out(job: PastJob, workspace: Workspace) -> str:
    reader = job.reader()
    if obstacle := reader.obstacle(workspace):
        return obstacle
    if job.images and not reader.has_rows():
        return f"the rows of {job.name!r} are no longer in {job.target!r}: restore them, or run the job again"
    return ""


def trust_databases(jobs: list[PastJob]) -> None:
    """Confirm the database files of some jobs, wherever they lie."""
    for job in jobs:
        if is_duckdb(job.target) and "://" not in job.target:
            trust(job.target)


def _read(place: Path) -> Iterator[PastJob]:
    manifest, is_parquet = _manifest(place), (place / JOB).is_file()
    if _is_elsewhere(place, manifest):
        name = f"{place.name}-{slug(manifest['target'])}" if is_parquet else place.name
        yield _past_job(name, manifest["target"], manifest["job"], manifest)
        manifest = {}
    if is_parquet:
        yield _past_job(place.name, str(place.absolute()), read_json(place / JOB), manifest)


def _manifest(place: Path) -> dict[str, Any]:
    return read_json(place / MANIFEST) if (place / MANIFEST).is_file() else {}


def _is_elsewhere(place: Path, manifest: dict[str, Any]) -> bool:
    """Whether a manifest is not that of the rows beside it; a directory that was moved has the path of before in it."""
    target = manifest.get("target", "")
    if not (place / JOB).is_file() or "://" in target or is_duckdb(target):
        return bool(target)
    return Path(target).resolve() != place.resolve() and (Path(target) / JOB).is_file()


def _past_job(name: str, target: str, job: dict[str, Any], manifest: dict[str, Any]) -> PastJob:
    summary = manifest.get("summary", {})
    return PastJob(
        name=name,
        id=job["id"],
        source=job["source"],
        model=f"{job['model']}/{job['model_version']}",
        target=target,
        finished=manifest.get("finished"),
        images=summary.get("images", 0),
        rejected=summary.get("rejected", 0),
        detections=summary.get("detections", 0),
        prefix=manifest.get("table_prefix", ""),
    )
