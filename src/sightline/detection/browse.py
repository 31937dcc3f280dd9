"""A past job to look around in: figures and images of a selection, asked with DuckDB, never loaded whole."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb
from PIL import Image

from sightline.detection.again import SIDES, Row, find_images, picture_of
from sightline.detection.past import PastJob, open_jobs
from sightline.detection.schema import OK, REJECTED
from sightline.detection.targets.parquet import MANIFEST, read_json
from sightline.detection.targets.reader import sql_text
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
_BIN = f"least(cast(floor(score * {SCORE_BINS}) as int), {SCORE_BINS - 1})"
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
        return kinds[self.kind] + self.named()

    def named(self) -> str:
        """The condition on a name, in SQL, to be added to others."""
        return f" and contains(lower(uri), lower({sql_text(self.name)}))" if self.name else ""


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


@dataclass(frozen=True)
class Figures:
    """All that is counted of a selection."""

    totals: Totals
    classes: tuple[ClassFound, ...]
    scores: tuple[int, ...]
    moments: tuple[Moment, ...]


class JobBrowser:
    """Answers questions about one job; several threads may ask at once."""

    def __init__(self, workspace: Workspace, job: PastJob) -> None:
        self.workspace, self.job, self._reader = workspace, job, job.reader()
        place = workspace.detections / job.name / MANIFEST
        self.manifest: Row = read_json(place) if place.is_file() else {}
        self._times: tuple[int, int] | None = None
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
                if self._kept is None and self._reader.is_shared:
                    self._kept = open_jobs([self.job], self.workspace)
            if self._kept is not None:
                return self._kept.cursor().sql(sql).to_arrow_table()
            with open_jobs(
                [self.job], self.workspace
            ) as database:  # A file of DuckDB's would be closed to all others meanwhile.
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
            ClassFound(row["label"], numbers.get(row["label"], 0), row["boxes"], row["images"], row["score"])
            for row in rows
        )

    @property
    def labels(self) -> dict[str, int]:
        """The number of each class, which decides on its colour: the model's, or what a first run has found so far."""
        known = self.manifest.get("classes") or [
            row["label"] for row in self.ask("select distinct label from detections order by label")
        ]
        return {name: number for number, name in enumerate(known)}

    def scores(self, selection: Selection = ALL) -> tuple[int, ...]:
        """Boxes by score, in bins of equal width."""
        rows = self.ask(f"select {_BIN} as bin, count(*) as boxes from ({_boxes(selection)}) group by 1")
        counts = {row["bin"]: row["boxes"] for row in rows}
        return tuple(counts.get(place, 0) for place in range(SCORE_BINS))

    def reasons(self) -> tuple[Reason, ...]:
        """Why images were rejected, the most frequent reason first."""
        rows = self.ask(
            "select stage, reason, count(*) as images, min(uri) as example from images "
            f"where status = {sql_text(REJECTED)} group by 1, 2 order by images desc, reason limit 100"
        )
        return tuple(Reason(row["stage"] or "", row["reason"] or "", row["images"], row["example"]) for row in rows)

    def figures(self, selection: Selection = ALL) -> Figures:
        """Totals, classes, scores and times in two passes over the rows; images of a class are not counted."""
        counted = f"label, {_BIN} as bin, count(*) as boxes, sum(score) as score"
        bins = self.ask(f"select {counted} from ({_boxes(selection)}) group by 1, 2")
        found: dict[str, tuple[int, float]] = {}
        for row in bins:
            boxes, score = found.get(row["label"], (0, 0.0))
            found[row["label"]] = boxes + row["boxes"], score + row["score"]
        scores = [0] * SCORE_BINS
        for row in bins:
            scores[row["bin"]] += row["boxes"]
        numbers = self.labels
        classes = [
            ClassFound(name, numbers.get(name, 0), boxes, 0, score / boxes) for name, (boxes, score) in found.items()
        ]
        totals, moments = self._by_time(selection)
        return Figures(
            totals, tuple(sorted(classes, key=lambda one: (-one.detections, one.name))), tuple(scores), moments
        )

    def over_time(self, selection: Selection = ALL) -> tuple[Moment, ...]:
        """Images by the time of their files, in at most 60 steps; nothing where the source does not tell the time."""
        return self._by_time(selection)[1]

    def _by_time(self, selection: Selection) -> tuple[Totals, tuple[Moment, ...]]:
        """Totals too, for they are the sums; the steps are those of the whole job, whatever is selected."""
        first, last = self._span()
        step = max((last - first) // _MOMENTS + 1, 1)
        rows = self.ask(
            f"select ({_TIME} - {first}) // {step} as place, count(*) as images, "
            f"count(*) filter (chosen > 0) as found, count(*) filter (status = {sql_text(REJECTED)}) as rejected, "
            "coalesce(sum(chosen), 0) as boxes "
            f"from ({_chosen(selection, 'version')}) group by 1 order by 1"
        )
        images, found, rejected, boxes = (
            sum(int(row[name]) for row in rows) for name in ("images", "found", "rejected", "boxes")
        )
        moments = [
            Moment(first + row["place"] * step, row["images"] - row["rejected"], row["found"])
            for row in rows
            if row["place"] is not None
        ]
        totals = Totals(images, found, rejected, boxes)
        return totals, tuple(moments) if first != last else ()

    def _span(self) -> tuple[int, int]:
        """The times of the first file and the last; asked once of a job that has ended."""
        if self._times is None or self.job.finished is None:
            (span,) = self.ask(f"select min({_TIME}) as first, max({_TIME}) as last from images")
            self._times = span["first"] or 0, span["last"] or 0
        return self._times

    def images(self, selection: Selection = ALL, *, order: Order = "any", start: int = 0, count: int = 12) -> list[Row]:
        """Some images of a selection with their chosen boxes, the surest first."""
        scored = {
            "unsure": ", list_min([box.score for box in picked]) as lowest",
            "sure": ", list_max([box.score for box in picked]) as highest",
        }
        more = ["filename", *(["picked"] if order in scored else [])]
        ids = self.ask(
            f"select image_id, filename{scored.get(order, '')}, chosen, uri from ({_chosen(selection, *more)}) "
            f"order by {_ORDERS[order]} limit {int(count)} offset {int(start)}"
        )
        listed = ", ".join(sql_text(row["image_id"]) for row in ids) or "''"
        files = [row["filename"] for row in ids if row["filename"]]
        table = (self._reader.rows_in(files) if files else None) or "rows"  # A job may have thousands of files.
        columns = "image_id, uri, version, status, stage, reason, detail, width, height"
        found = {
            row["image_id"]: row
            for row in self.ask(
                f"select {columns}, [box for box in boxes if {selection.box('box.')}] as boxes from {table} "
                f"where image_id in ({listed})"
            )
        }
        for row in found.values():
            row["boxes"].sort(key=lambda box: -box["score"])
        return [found[row["image_id"]] for row in ids if row["image_id"] in found]

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
    """Chosen boxes of the images of a selection; of those without any, and of rejected ones, there are none."""
    within = selection.box() if selection.kind in ("all", "found") else "false"
    return f"select * from detections where {within}{selection.named()}"


def _chosen(selection: Selection, *columns: str) -> str:
    """Images of a selection; `chosen` is how many boxes are looked at, `picked` are those boxes."""
    condition = selection.box("box.")
    if selection.every_box:
        counted, picked = "num_detections", "boxes"
    else:
        counted = f"coalesce(list_sum([cast({condition} as tinyint) for box in boxes]), 0)"
        picked = f"[box for box in boxes if {condition}]"
    more = f", {picked} as picked" if "picked" in columns else ""
    kept = ", ".join(["image_id", "uri", "status", *columns])
    return f"select {kept}, chosen from (select *, {counted} as chosen{more} from rows) where {selection.image()}"
