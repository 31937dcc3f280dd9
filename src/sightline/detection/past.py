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
from sightline.detection.schema import BOX, DETECTIONS, IMAGES
from sightline.detection.targets.factory import DUCKDB_SUFFIXES
from sightline.detection.targets.parquet import IMAGES_FOLDER, JOB, MANIFEST, read_json, scan_images, sql_text
from sightline.detection.trust import is_trusted, trust
from sightline.errors import ConfigError, DamagedError, NotFoundError
from sightline.workspace import Workspace

_SCALARS = [field.name for field in IMAGES if field.name != "boxes"]


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
    reasons = left_out(jobs, workspace)
    usable = [job for job in jobs if job.name not in reasons and _has_rows(job)]
    if not usable and reasons:
        raise ConfigError("; ".join(reasons.values()))
    if not usable:
        raise NotFoundError("there are no detections yet: `sightline detect MODEL SOURCE` makes some")
    database = duckdb.connect(config=SETTINGS if restricted else {})
    try:
        for file in dict.fromkeys(job.target for job in usable if _is_duckdb(job)):
            database.execute(f"attach {sql_text(file)} as {_quoted(file)} (read_only)")
        database.execute("set timezone = 'UTC'")
        database.execute("set parquet_metadata_cache = true")  # A job may have thousands of files.
        scans = {job.name: _registered(database, job) if restricted else _scan(job) for job in usable}
        for name, select in {"images": _images, "detections": _detections, "rows": _rows}.items():
            selects = " union all by name ".join(select(job, scans[job.name]) for job in usable)
            database.execute(f"create view {name} as {selects}")
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
    if "://" in job.target:
        return (
            f"the rows of {job.name!r} are in {job.target}: query that database directly, in its tables "
            f"{job.prefix}images and {job.prefix}detections (job = {job.id!r})"
        )
    if _is_duckdb(job) and not is_trusted(job.target, workspace):
        return (
            f"the rows of {job.name!r} are in {job.target!r}, a database outside the workspace that you have not "
            f"confirmed: if you know this file, run `sightline query SQL --job {job.name} --trust` once"
        )
    if job.images and not _has_rows(job):
        return f"the rows of {job.name!r} are no longer in {job.target!r}: restore them, or run the job again"
    return ""


def trust_databases(jobs: list[PastJob]) -> None:
    """Confirm the database files of some jobs, wherever they lie."""
    for job in jobs:
        if _is_duckdb(job) and "://" not in job.target:
            trust(job.target)


def is_parquet(job: PastJob) -> bool:
    """Whether its rows are files that anybody may read while others write more."""
    return not _is_duckdb(job) and "://" not in job.target


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
    if not (place / JOB).is_file() or "://" in target or target.lower().endswith(DUCKDB_SUFFIXES):
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


def _has_rows(job: PastJob) -> bool:
    place = Path(job.target)
    return place.is_file() if _is_duckdb(job) else any((place / IMAGES_FOLDER).glob("*.parquet"))


def _is_duckdb(job: PastJob) -> bool:
    return job.target.lower().endswith(DUCKDB_SUFFIXES)


def _scan(job: PastJob) -> str:
    return scan_images(Path(job.target), filename=True)


def _registered(database: duckdb.DuckDBPyConnection, job: PastJob) -> str:
    """The same rows as an Arrow dataset: DuckDB needs no access to files to read it."""
    import pyarrow.dataset as ds

    if _is_duckdb(job):
        return ""
    files = sorted(map(str, (Path(job.target) / IMAGES_FOLDER).glob("*.parquet")))
    name = f"rows of {job.name}"
    database.register(name, ds.dataset(files, schema=IMAGES, format="parquet"))
    return f"(select *, '' as filename from {_quoted(name)})"


def _images(job: PastJob, scan: str) -> str:
    rows = _table(job, "images") if _is_duckdb(job) else scan
    return f"select {sql_text(job.name)} as job, {', '.join(_SCALARS)} from {rows}"


def _detections(job: PastJob, scan: str) -> str:
    if _is_duckdb(job):
        return f"select {sql_text(job.name)} as job, {', '.join(DETECTIONS.names)} from {_table(job, 'detections')}"
    boxes = {field.name: f"box.{field.name}" for field in BOX}
    columns = ", ".join(f"{boxes.get(name, name)} as {name}" for name in DETECTIONS.names)
    rows = f"(select image_id, uri, model, model_version, unnest(boxes) as box from {scan})"
    return f"select {sql_text(job.name)} as job, {columns} from {rows}"


def _rows(job: PastJob, scan: str) -> str:
    """With the boxes of each image in a list; DuckDB's own files have them in the other table."""
    if not _is_duckdb(job):
        return f"select {sql_text(job.name)} as job, * from {scan}"
    fields = ", ".join(f"{field.name} := {field.name}" for field in BOX)
    boxes = f"(select image_id, list(struct_pack({fields})) as boxes from {_table(job, 'detections')} group by 1)"
    return (
        f"select {sql_text(job.name)} as job, i.{', i.'.join(_SCALARS)}, coalesce(b.boxes, []) as boxes, "
        f"'' as filename from {_table(job, 'images')} i left join {boxes} b using (image_id)"
    )


def _table(job: PastJob, name: str) -> str:
    return f"(select * from {_quoted(job.target)}.main.{_quoted(job.prefix + name)} where job = {sql_text(job.id)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
