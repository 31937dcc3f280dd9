"""Past jobs of a workspace, and SQL over what they found.

Each job has a directory `detections/NAME` in the workspace: its Parquet target, or, if its rows went elsewhere, only
the manifest that says where.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sightline.detection.schema import BOX, DETECTIONS, IMAGES
from sightline.detection.targets.factory import DUCKDB_SUFFIXES
from sightline.detection.targets.parquet import IMAGES_FOLDER, JOB, MANIFEST, read_json, scan_images, sql_text
from sightline.errors import ConfigError, NotFoundError
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
    found = [_read(place) for place in places if (place / MANIFEST).is_file() or (place / JOB).is_file()]
    return sorted(found, key=lambda job: job.finished or "", reverse=True)


def record(workspace: Workspace, name: str, manifest: dict[str, Any], *, prefix: str) -> None:
    """Note a job whose rows are not in the workspace."""
    place = workspace.detections / name
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**manifest, "table_prefix": prefix}, indent=2, ensure_ascii=False, default=str)
    partial = place / f".{MANIFEST}.tmp"
    partial.write_text(text, "utf-8")
    partial.rename(place / MANIFEST)


def query_jobs(jobs: list[PastJob], sql: str, *, limit: int | None = None) -> pa.Table:
    """Run a query over the views `images` and `detections` of some jobs; both have a column `job`.

    Raises:
        ConfigError: The query is wrong; the message is DuckDB's.
    """
    try:
        with open_jobs(jobs) as database:
            found = database.sql(sql)
            if found is None:
                return pa.table({})
            return (found.limit(limit) if limit is not None else found).to_arrow_table()
    except duckdb.Error as error:
        raise ConfigError(f"the query failed: {error}") from None


def open_jobs(jobs: list[PastJob]) -> duckdb.DuckDBPyConnection:
    """A database with the views `images` and `detections` of some jobs, and `rows`, with the boxes in their images.

    Raises:
        NotFoundError: None of them has rows yet.
        ConfigError: Their rows are in a database of another kind.
    """
    usable = _usable(jobs)
    database = duckdb.connect()
    try:
        for file in dict.fromkeys(job.target for job in usable if _is_duckdb(job)):
            database.execute(f"attach {sql_text(file)} as {_quoted(file)} (read_only)")
        database.execute("set timezone = 'UTC'")
        database.execute("set parquet_metadata_cache = true")  # A job may have thousands of files.
        for name, select in {"images": _images, "detections": _detections, "rows": _rows}.items():
            database.execute(f"create view {name} as {' union all '.join(select(job) for job in usable)}")
    except duckdb.Error:
        database.close()
        raise
    return database


def is_parquet(job: PastJob) -> bool:
    """Whether its rows are files that anybody may read while others write more."""
    return not _is_duckdb(job) and "://" not in job.target


def _read(place: Path) -> PastJob:
    manifest = read_json(place / MANIFEST) if (place / MANIFEST).is_file() else {}
    job = manifest.get("job") or read_json(place / JOB)
    summary = manifest.get("summary", {})
    return PastJob(
        name=place.name,
        id=job["id"],
        source=job["source"],
        model=f"{job['model']}/{job['model_version']}",
        target=manifest.get("target", str(place)),
        finished=manifest.get("finished"),
        images=summary.get("images", 0),
        rejected=summary.get("rejected", 0),
        detections=summary.get("detections", 0),
        prefix=manifest.get("table_prefix", ""),
    )


def _usable(jobs: list[PastJob]) -> list[PastJob]:
    """The jobs whose rows DuckDB can read."""
    elsewhere = [job for job in jobs if "://" in job.target]
    usable = [job for job in jobs if job not in elsewhere and _has_rows(job)]
    if usable:
        return usable
    if elsewhere:
        raise ConfigError(
            f"the rows of {elsewhere[0].name!r} are in {elsewhere[0].target}: ask that database, its tables are "
            f"{elsewhere[0].prefix}images and {elsewhere[0].prefix}detections (job = {elsewhere[0].id!r})"
        )
    raise NotFoundError("there are no detections yet: `sightline detect MODEL SOURCE` makes some")


def _has_rows(job: PastJob) -> bool:
    place = Path(job.target)
    return place.is_file() if _is_duckdb(job) else any((place / IMAGES_FOLDER).glob("*.parquet"))


def _is_duckdb(job: PastJob) -> bool:
    return job.target.lower().endswith(DUCKDB_SUFFIXES)


def _images(job: PastJob) -> str:
    if _is_duckdb(job):
        return f"select {sql_text(job.name)} as job, {', '.join(_SCALARS)} from {_table(job, 'images')}"
    return f"select {sql_text(job.name)} as job, {', '.join(_SCALARS)} from {scan_images(Path(job.target))}"


def _detections(job: PastJob) -> str:
    if _is_duckdb(job):
        return f"select {sql_text(job.name)} as job, {', '.join(DETECTIONS.names)} from {_table(job, 'detections')}"
    boxes = {field.name: f"box.{field.name}" for field in BOX}
    columns = ", ".join(f"{boxes.get(name, name)} as {name}" for name in DETECTIONS.names)
    rows = f"(select image_id, uri, model, model_version, unnest(boxes) as box from {scan_images(Path(job.target))})"
    return f"select {sql_text(job.name)} as job, {columns} from {rows}"


def _rows(job: PastJob) -> str:
    """With the boxes of each image in a list; DuckDB's own files have them in the other table."""
    if not _is_duckdb(job):
        return f"select {sql_text(job.name)} as job, * from {scan_images(Path(job.target), filename=True)}"
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
