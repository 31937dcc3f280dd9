"""A past job to look around in: figures and images of a selection, asked with DuckDB, never loaded whole."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import duckdb
from PIL import Image

from sightline.detection.again import SIDES, Row, find_images, picture_of
from sightline.detection.past import PastJob, is_parquet, open_jobs
from sightline.detection.schema import OK, REJECTED
from sightline.detection.targets.parquet import MANIFEST, read_json, sql_text
from sightline.errors import ConfigError, SightlineError
from sightline.report.job_report import SCORE_BINS, ClassFound, Moment, Reason
from sightline.workspace import Workspace

Kind = Literal["all", "found", "empty", "rejected"]
Order = Literal["any", "unsure", "sure", "most", "name"]

_ORDERS: dict[Order, str] = {
    "any": "hash(image_id), image_id",
    "unsure": "lowest nulls last, image_id",
    "sure": "highest desc nulls last, image_id",
    "most": "chosen desc, image_id",
    "name": "uri, image_id",
}
_MOMENTS = 60
_TIME = "try_cast(split_part(version, '-', 2) as bigint) // 1000000"
"""Milliseconds, from what a source noted of a file."""


@dataclass(frozen=True)
class Selection:
    """Which boxes and images of a job are looked at.

    Attributes:
        kind: All images, those with at least one chosen box, usable ones without, or rejected ones.
        labels: Classes of boxes; empty means all.
        lowest: Boxes below this score are not looked at.
        highest: Nor those above this one.
        name: A part of the URI.
    """

    kind: Kind = "all"
    labels: tuple[str, ...] = ()
    lowest: float = 0.0
    highest: float = 1.0
    name: str = ""

    @property
    def every_box(self) -> bool:
        """Whether no box is left out."""
        return not self.labels and self.lowest <= 0 and self.highest >= 1

    def box(self, prefix: str = "") -> str:
        """The condition on a box, in SQL."""
        within = [f"{prefix}score between {float(self.lowest)} and {float(self.highest)}"]
        listed = ", ".join(map(sql_text, self.labels))
        return " and ".join(within + ([f"{prefix}label in ({listed})"] if listed else []))

    def image(self) -> str:
        """The condition on an image with `chosen` boxes, in SQL."""
        kinds = {
            "all": "true",
            "found": "chosen > 0",
            "empty": f"chosen = 0 and status = {sql_text(OK)}",
            "rejected": f"status = {sql_text(REJECTED)}",
        }
        named = f" and contains(lower(uri), lower({sql_text(self.name)}))" if self.name else ""
        return kinds[self.kind] + named


ALL = Selection()


@dataclass(frozen=True)
class Totals:
    """A selection in figures.

    Attributes:
        images: Of the selection; the others are among these.
        found: With at least one chosen box.
        detections: Chosen boxes.
    """

    images: int
    found: int
    rejected: int
    detections: int


class JobBrowser:
    """Answers questions about one job; several threads may ask at once."""

    def __init__(self, workspace: Workspace, job: PastJob) -> None:
        self.workspace, self.job = workspace, job
        place = workspace.detections / job.name / MANIFEST
        self.manifest: Row = read_json(place) if place.is_file() else {}
        self._kept: duckdb.DuckDBPyConnection | None = None
        self._opening = threading.Lock()

    def ask(self, sql: str) -> list[Row]:
        """Run a query over the views `images`, `detections` and `rows` of the job."""
        rows: list[Row] = self.table(sql).to_pylist()
        return rows

    def table(self, sql: str) -> Any:
        """The same as an Arrow table."""
        try:
            with self._opening:
                if self._kept is None and is_parquet(self.job):
                    self._kept = open_jobs([self.job])
            if self._kept is not None:
                return self._kept.cursor().sql(sql).to_arrow_table()
            with open_jobs([self.job]) as database:  # A file of DuckDB's would be closed to all others meanwhile.
                return database.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"the query failed: {error}") from None

    def totals(self, selection: Selection = ALL) -> Totals:
        """How many images and boxes there are."""
        (row,) = self.ask(
            "select count(*) as images, count(*) filter (chosen > 0) as found, coalesce(sum(chosen), 0) as boxes, "
            f"count(*) filter (status = {sql_text(REJECTED)}) as rejected from ({_chosen(selection)})"
        )
        return Totals(row["images"], row["found"], row["rejected"], int(row["boxes"]))

    def classes(self, selection: Selection = ALL) -> tuple[ClassFound, ...]:
        """What was found, most first."""
        rows = self.ask(
            "select label, count(*) as boxes, count(distinct image_id) as images, avg(score) as score "
            f"from ({_boxes(selection)}) group by label order by boxes desc, label"
        )
        numbers = self.labels
        return tuple(
            ClassFound(row["label"], numbers[row["label"]], row["boxes"], row["images"], row["score"]) for row in rows
        )

    @cached_property
    def labels(self) -> dict[str, int]:
        """The number of each class, which decides on its colour: the model's, and after them what was found besides."""
        known = {name: number for number, name in enumerate(self.manifest.get("classes", []))}
        for row in self.ask("select distinct label from detections order by label"):
            known.setdefault(row["label"], len(known))
        return known

    def scores(self, selection: Selection = ALL) -> tuple[int, ...]:
        """Boxes by score, in bins of equal width."""
        place = f"least(cast(floor(score * {SCORE_BINS}) as int), {SCORE_BINS - 1})"
        rows = self.ask(f"select {place} as bin, count(*) as boxes from ({_boxes(selection)}) group by 1")
        counts = {row["bin"]: row["boxes"] for row in rows}
        return tuple(counts.get(place, 0) for place in range(SCORE_BINS))

    def reasons(self) -> tuple[Reason, ...]:
        """Why images were rejected, the most frequent reason first."""
        rows = self.ask(
            "select stage, reason, count(*) as images, min(uri) as example from images "
            f"where status = {sql_text(REJECTED)} group by 1, 2 order by images desc, reason limit 100"
        )
        return tuple(Reason(row["stage"] or "", row["reason"] or "", row["images"], row["example"]) for row in rows)

    def over_time(self, selection: Selection = ALL) -> tuple[Moment, ...]:
        """Images by the time of their files, in at most 60 steps; nothing where the source does not tell the time."""
        timed = f"(select {_TIME} as moment, chosen, status from ({_chosen(selection, 'version')}))"
        (span,) = self.ask(f"select min(moment) as first, max(moment) as last from {timed}")
        if span["first"] is None or span["first"] == span["last"]:
            return ()
        step = max((span["last"] - span["first"]) // _MOMENTS + 1, 1)
        place, usable = f"(moment - {span['first']}) // {step}", f"status = {sql_text(OK)}"
        rows = self.ask(
            f"select {place} as place, count(*) filter ({usable}) as images, count(*) filter (chosen > 0) as found "
            f"from {timed} where moment is not null group by 1 order by 1"
        )
        return tuple(Moment(span["first"] + row["place"] * step, row["images"], row["found"]) for row in rows)

    def images(self, selection: Selection = ALL, *, order: Order = "any", start: int = 0, count: int = 12) -> list[Row]:
        """Some images of a selection with their chosen boxes."""
        scored = "list_min([box.score for box in picked]) as lowest, list_max([box.score for box in picked]) as highest"
        columns = "image_id, uri, status, stage, reason, detail, width, height"
        ids = self.ask(
            f"select image_id, {scored}, chosen, uri from ({_chosen(selection, 'picked')}) "
            f"order by {_ORDERS[order]} limit {int(count)} offset {int(start)}"
        )
        found = self.by_id([row["image_id"] for row in ids], selection, columns=columns)
        return [found[row["image_id"]] for row in ids]

    def by_id(
        self, ids: Iterable[str], selection: Selection = ALL, *, columns: str = "image_id, uri"
    ) -> dict[str, Row]:
        """Images by id, with their chosen boxes."""
        listed = ", ".join(sql_text(id) for id in sorted(ids)) or "''"
        rows = self.ask(f"select {columns} from images where image_id in ({listed})")
        boxes = self.ask(
            f"select image_id, label, score, {', '.join(SIDES)} from detections "
            f"where image_id in ({listed}) and {selection.box()} order by score desc"
        )
        by_id = {row["image_id"]: {**row, "boxes": []} for row in rows}
        for box in boxes:
            by_id[box["image_id"]]["boxes"].append(box)
        return by_id

    def read(self, rows: Sequence[Row]) -> dict[str, bytes | SightlineError]:
        """The encoded images of some rows by id, read again from the job's source, or why one cannot be read."""
        return find_images(self.workspace, self.job, rows)

    def draw(self, row: Row, data: bytes, *, side: int) -> Image.Image:
        """An image with its boxes, fitted into a square of so many pixels."""
        return picture_of(row, data, self.labels, side=side)

    def export(self, selection: Selection, to: Path) -> int:
        """Write the chosen boxes, and a row without a box for images that have none; returns how many rows.

        Args:
            to: A .csv or .parquet file.
        """
        kinds = {".csv": "csv, header", ".parquet": "parquet"}
        if to.suffix not in kinds:
            raise ConfigError(f"a selection is written as .csv or .parquet, not {to.name!r}")
        boxes = f"(select image_id, label, score, {', '.join(SIDES)} from ({_boxes(selection)}))"
        rows = (
            f"select i.image_id, i.uri, i.status, i.reason, i.width, i.height, b.* exclude (image_id) "
            f"from ({_chosen(selection, 'reason', 'width', 'height')}) i left join {boxes} b using (image_id) "
            "order by i.uri, i.image_id, b.score desc"
        )
        # `sql` would only plan it.
        (done,) = self.ask(f"copy ({rows}) to {sql_text(str(to))} (format {kinds[to.suffix]})")
        return int(next(iter(done.values())))


def _boxes(selection: Selection) -> str:
    """Chosen boxes of the images of a selection."""
    boxes = f"select * from detections where {selection.box()}"
    if selection.kind in ("all", "found") and not selection.name:
        return boxes
    return f"select b.* from ({boxes}) b semi join ({_chosen(selection)}) i using (image_id)"


def _chosen(selection: Selection, *columns: str) -> str:
    """Images of a selection; `chosen` is how many boxes are looked at, `picked` are those boxes."""
    picked = "boxes" if selection.every_box else f"[box for box in boxes if {selection.box('box.')}]"
    counted = "num_detections" if selection.every_box and "picked" not in columns else "len(picked)"
    inner = f"select *, {picked} as picked from rows" if counted != "num_detections" else "select * from rows"
    kept = ", ".join(["image_id", "uri", "status", *columns])
    return f"select {kept}, chosen from (select *, {counted} as chosen from ({inner})) where {selection.image()}"
