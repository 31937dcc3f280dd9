"""A job in figures and some of its images: its rows are asked with DuckDB, never loaded whole."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.config import SourceConfig
from sightline.data.decode import MAX_PIXELS, decode
from sightline.detection.item import Item, Source
from sightline.detection.past import PastJob, query_jobs
from sightline.detection.schema import REJECTED
from sightline.detection.sources.factory import open_source
from sightline.detection.sources.listing import ListSource
from sightline.detection.targets.parquet import MANIFEST, read_json, sql_text
from sightline.errors import ImageError, SightlineError
from sightline.report.drawing import draw_boxes
from sightline.report.job_report import SCORE_BINS, ClassFound, JobReport, Picture, Reason
from sightline.report.thumbnails import THUMBNAIL_PX, data_uri
from sightline.workspace import Workspace

_MOST_SEARCHED = 200_000
"""Items of a source that are gone through to find some again."""
_SIDES = ("xmin", "ymin", "xmax", "ymax")

Row = dict[str, Any]


def survey_job(workspace: Workspace, job: PastJob, *, pictures: int = 12) -> JobReport:
    """What a job has found.

    Args:
        pictures: How many images with detections are shown; of the least sure and of those without, half as many each.
    """
    manifest = _manifest(workspace, job)
    (totals,) = _ask(
        job,
        "select count(*) as images, count(*) filter (num_detections > 0) as found, "
        f"count(*) filter (status = {sql_text(REJECTED)}) as rejected, coalesce(sum(num_detections), 0) as boxes "
        "from images",
    )
    classes = _classes(job, manifest)
    labels = {found.name: found.label for found in classes}
    chosen = _choose(job, pictures)
    drawn = _draw(workspace, job, [row for rows in chosen.values() for row in rows], labels)
    return JobReport(
        name=job.name,
        model=job.model,
        source=job.source,
        images=totals["images"],
        rejected=totals["rejected"],
        with_detections=totals["found"],
        detections=int(totals["boxes"]),
        classes=classes,
        scores=_scores(job),
        reasons=_reasons(job),
        pictures={title: tuple(drawn[row["image_id"]] for row in rows) for title, rows in chosen.items()},
        about=_about(manifest, job),
    )


def find_images(workspace: Workspace, job: PastJob, rows: Sequence[Row]) -> dict[str, bytes | SightlineError]:
    """The encoded images of some rows by id, read again from the job's source, or why one cannot be read."""
    plain = [row for row in rows if _is_file(row["uri"])]
    found: dict[str, bytes | SightlineError] = {}
    if plain:
        found = _read(ListSource([row["uri"] for row in plain]), {row["uri"]: row["image_id"] for row in plain})
    missing = {row["image_id"] for row in rows} - {id for id, data in found.items() if isinstance(data, bytes)}
    if not missing:
        return found
    try:
        source = _reopen(workspace, job)
        items = (item for item in islice(source.items(), _MOST_SEARCHED) if item.image_id in missing)
        for item in islice(items, len(missing)):
            found[item.image_id] = _read_one(source, item)
    except SightlineError as error:
        found |= {id: found.get(id, error) for id in missing}
    gone = ImageError("not found", "the source does not have it any more", stage="read")
    return {row["image_id"]: found.get(row["image_id"], gone) for row in rows}


def picture_of(row: Row, data: bytes, labels: dict[str, int], *, side: int = THUMBNAIL_PX) -> Image.Image:
    """An image of a job with its boxes, fitted into a square of so many pixels.

    Args:
        labels: The number of each class, which decides on its colour.

    Raises:
        ImageError: It cannot be decoded.
    """
    pixels = Image.fromarray(decode(data, max_pixels=MAX_PIXELS))
    scale = min(1.0, side / max(pixels.size))
    size = max(round(pixels.width * scale), 1), max(round(pixels.height * scale), 1)
    small = pixels.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0) if scale < 1 else pixels
    boxes = np.array([[box[edge] for edge in _SIDES] for box in row["boxes"]], np.float32).reshape(-1, 4)
    drawn: Image.Image = draw_boxes(
        small,
        boxes * np.float32(scale),
        np.array([labels[box["label"]] for box in row["boxes"]], np.int32),
        classes=_named(labels),
        scores=np.array([box["score"] for box in row["boxes"]], np.float32),
    )
    return drawn


def _named(labels: dict[str, int]) -> list[str]:
    """Names by number; numbers that nothing was found of have none."""
    names = [""] * (max(labels.values(), default=-1) + 1)
    for name, number in labels.items():
        names[number] = name
    return names


def _ask(job: PastJob, sql: str) -> list[Row]:
    rows: list[Row] = query_jobs([job], sql).to_pylist()
    return rows


def _classes(job: PastJob, manifest: Row) -> tuple[ClassFound, ...]:
    rows = _ask(
        job,
        "select label, count(*) as boxes, count(distinct image_id) as images, avg(score) as score from detections "
        "group by label order by boxes desc, label",
    )
    known = {name: number for number, name in enumerate(manifest.get("classes", []))}
    for name in sorted(row["label"] for row in rows):
        known.setdefault(name, len(known))
    return tuple(
        ClassFound(row["label"], known[row["label"]], row["boxes"], row["images"], row["score"]) for row in rows
    )


def _scores(job: PastJob) -> tuple[int, ...]:
    place = f"least(cast(floor(score * {SCORE_BINS}) as int), {SCORE_BINS - 1})"
    rows = _ask(job, f"select {place} as bin, count(*) as boxes from detections group by 1")
    counts = {row["bin"]: row["boxes"] for row in rows}
    return tuple(counts.get(place, 0) for place in range(SCORE_BINS))


def _reasons(job: PastJob) -> tuple[Reason, ...]:
    rows = _ask(
        job,
        "select stage, reason, count(*) as images, min(uri) as example from images "
        f"where status = {sql_text(REJECTED)} group by 1, 2 order by images desc, reason limit 100",
    )
    return tuple(Reason(row["stage"] or "", row["reason"] or "", row["images"], row["example"]) for row in rows)


def _choose(job: PastJob, count: int) -> dict[str, list[Row]]:
    """Some images with detections, the least sure ones, and some without; the same ones every time."""
    some = _ask(
        job, f"select image_id from images where num_detections > 0 order by hash(image_id), image_id limit {count}"
    )
    unsure = _ask(
        job,
        "select image_id, min(score) as lowest from detections group by 1 order by lowest, image_id "
        f"limit {count // 2}",
    )
    empty = _ask(
        job,
        f"select image_id from images where num_detections = 0 and status != {sql_text(REJECTED)} "
        f"order by hash(image_id), image_id limit {count // 2}",
    )
    titles = {"What was found": some, "Where it was least sure": unsure, "Where it found nothing": empty}
    rows = _with_boxes(job, {row["image_id"] for chosen in titles.values() for row in chosen})
    return {title: [rows[row["image_id"]] for row in chosen] for title, chosen in titles.items()}


def _with_boxes(job: PastJob, ids: Iterable[str]) -> dict[str, Row]:
    listed = ", ".join(sql_text(id) for id in sorted(ids)) or "''"
    rows = _ask(job, f"select image_id, uri from images where image_id in ({listed})")
    boxes = _ask(
        job, f"select image_id, label, score, {', '.join(_SIDES)} from detections where image_id in ({listed})"
    )
    by_id = {row["image_id"]: {**row, "boxes": []} for row in rows}
    for box in boxes:
        by_id[box["image_id"]]["boxes"].append(box)
    return by_id


def _draw(workspace: Workspace, job: PastJob, rows: list[Row], labels: dict[str, int]) -> dict[str, Picture]:
    data = find_images(workspace, job, rows)
    return {row["image_id"]: _picture(row, data[row["image_id"]], labels) for row in rows}


def _picture(row: Row, data: bytes | SightlineError, labels: dict[str, int]) -> Picture:
    scores = [box["score"] for box in row["boxes"]]
    caption = f"{len(scores)} found, {min(scores):.2f} to {max(scores):.2f}" if scores else ""
    try:
        if isinstance(data, SightlineError):
            raise data
        drawn = picture_of(row, data, labels)
    except SightlineError as error:
        return Picture(row["uri"], caption, trouble=str(error))
    return Picture(row["uri"], caption, data_uri(drawn), *drawn.size)


def _about(manifest: Row, job: PastJob) -> dict[str, str]:
    said, run = manifest.get("job", {}), manifest.get("run", {})
    machine = manifest.get("machine", {})
    facts = {
        "Model": job.model,
        "Bundle": str(said.get("bundle", ""))[:16],
        "Engine": said.get("engine"),
        "Lowest score": said.get("threshold"),
        "Image size": said.get("size"),
        "Tiles": f"{said['tile']}, overlap {said['overlap']}" if said.get("tile") else None,
        "Rows": job.target,
        "Finished": job.finished,
        "Images per second, last run": run.get("images_per_s"),
        "Workers": machine.get("placement", {}).get("workers"),
        "Machine": f"{machine['cpu']}, {machine['cores']} cores" if "cpu" in machine else None,
        "Sightline": manifest.get("sightline_version"),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _manifest(workspace: Workspace, job: PastJob) -> Row:
    place = workspace.detections / job.name / MANIFEST
    return read_json(place) if place.is_file() else {}


def _is_file(uri: str) -> bool:
    """Whether a URI is a path or an object in a bucket, not a member of something."""
    return "!/" not in uri and (uri.startswith("/") or re.match(r"[a-z0-9]+://", uri) is not None)


def _reopen(workspace: Workspace, job: PastJob) -> Source:
    """The source by its public name; that of a dataset has its content behind it."""
    name = re.sub(r"@[0-9a-f]{16}( where .*)?$", "", job.source)
    return open_source(name if "://" in name else Path(name), SourceConfig(), workspace)[0]


def _read(source: ListSource, ids: dict[str, str]) -> dict[str, bytes | SightlineError]:
    return {ids[item.uri]: _read_one(source, item) for item in source.items() if item.uri in ids}


def _read_one(source: Source, item: Item) -> bytes | SightlineError:
    try:
        return source.read(item)
    except SightlineError as error:
        return error
