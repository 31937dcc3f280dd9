"""What a detection job has found, as a page, and the figures that the page and the app show."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import altair as alt
from markupsafe import Markup

from sightline.report.charts import ACCENT, BAR_HEIGHT, HEIGHT, MAX_CLASSES, WIDTH, to_svg
from sightline.report.colors import hex_color_of
from sightline.report.name import one_line
from sightline.report.page import environment, write_whole

SCORE_BINS = 20


@dataclass(frozen=True)
class ClassFound:
    """One class of a job.

    Attributes:
        label: Its number in the model, which decides on its colour.
        images: Images with at least one.
    """

    name: str
    label: int
    detections: int
    images: int
    mean_score: float


@dataclass(frozen=True)
class Reason:
    """Why images were rejected."""

    stage: str
    reason: str
    images: int
    example: str


@dataclass(frozen=True)
class Moment:
    """Images of some stretch of time.

    Attributes:
        at: Its beginning, in milliseconds since 1970.
        images: That could be used.
        found: With at least one detection.
    """

    at: int
    images: int
    found: int


@dataclass(frozen=True)
class Picture:
    """An image of the job with its boxes, small, or the reason why there is none.

    Attributes:
        uri: "data:image/jpeg;base64,…", or empty.
    """

    name: str
    caption: str
    uri: str = ""
    width: int = 1
    height: int = 1
    trouble: str = ""


@dataclass(frozen=True)
class JobReport:
    """A job in figures.

    Attributes:
        scores: Detections in bins of equal width from 0 to 1.
        with_detections: Images with at least one.
        pictures: Some images, by what they stand for.
        about: Facts on how it was made, in order.
    """

    name: str
    model: str
    source: str
    images: int
    rejected: int
    with_detections: int
    detections: int
    classes: tuple[ClassFound, ...]
    scores: tuple[int, ...]
    reasons: tuple[Reason, ...] = ()
    pictures: dict[str, tuple[Picture, ...]] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)


def write_job_page(report: JobReport, path: Path) -> None:
    """Write one HTML file that needs nothing else; a file of that name is replaced when the new one is complete."""
    drawn: dict[str, Markup] = {}
    if report.classes:
        drawn["classes"] = Markup(to_svg(pareto_chart(report.classes)))
        drawn["scores"] = Markup(to_svg(score_chart(report.scores)))
    page = environment().get_template("job.html").render(report=report, charts=drawn, num_charted=MAX_CLASSES)
    write_whole(path, page)


def pareto_chart(classes: Sequence[ClassFound], *, limit: int = MAX_CLASSES) -> alt.LayerChart:
    """Classes by number of detections, and which share of all the first ones make up together."""
    total, so_far = sum(found.detections for found in classes), 0
    rows: list[dict[str, Any]] = []
    for rank, found in enumerate(classes[:limit]):
        so_far += found.detections
        rows.append(
            {
                "class": one_line(found.name, limit=40),
                "rank": rank,
                "detections": found.detections,
                "share": so_far / total,
                "color": hex_color_of(found.label),
            }
        )
    base = alt.Chart({"values": rows}).encode(
        y=alt.Y(
            "class:N",
            sort=alt.EncodingSortField(field="rank", op="min"),
            title=None,
            axis=alt.Axis(labelLimit=130, ticks=False, domain=False),
        )
    )
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X("detections:Q", title="detections", axis=alt.Axis(tickCount=4, tickMinStep=1, format="~s")),
        color=alt.Color("color:N", scale=None),
        tooltip=["class:N", alt.Tooltip("detections:Q", format=","), alt.Tooltip("share:Q", format=".1%")],
    )
    line = base.mark_line(color=ACCENT, strokeWidth=1.5, point={"size": 22, "color": ACCENT}).encode(
        x=alt.X("share:Q", title="share of all, added up", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%"))
    )
    chart: alt.LayerChart = (
        alt.layer(bars, line)
        .resolve_scale(x="independent")
        .properties(width=WIDTH, height=BAR_HEIGHT * max(len(rows), 3))
    )
    return chart


def score_chart(scores: Sequence[int]) -> alt.Chart:
    """How sure the model was."""
    step = 1 / len(scores)
    rows = [{"low": place * step, "high": (place + 1) * step, "count": count} for place, count in enumerate(scores)]
    chart: alt.Chart = (
        alt.Chart({"values": rows})
        .mark_bar(color=ACCENT, binSpacing=1)
        .encode(
            x=alt.X("low:Q", bin="binned", title="score", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(grid=False)),
            x2="high:Q",
            y=alt.Y("count:Q", title="detections", axis=alt.Axis(tickCount=4, tickMinStep=1, format="~s")),
            tooltip=[alt.Tooltip("low:Q", format=".2f"), alt.Tooltip("count:Q", format=",")],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def time_chart(moments: Sequence[Moment]) -> alt.Chart:
    """The share of images with at least one detection, over time."""
    rows = [
        {"at": one.at, "share": one.found / one.images, "images": one.images, "found": one.found}
        for one in moments
        if one.images
    ]
    chart: alt.Chart = (
        alt.Chart({"values": rows})
        .mark_line(color=ACCENT, strokeWidth=1.5, point={"size": 22, "color": ACCENT})
        .encode(
            x=alt.X("at:T", title="time of the file (UTC)", scale=alt.Scale(type="utc")),
            y=alt.Y(
                "share:Q", title="images with a detection", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")
            ),
            tooltip=[
                alt.Tooltip("at:T", format="%Y-%m-%d %H:%M"),
                alt.Tooltip("images:Q", format=","),
                alt.Tooltip("found:Q", format=","),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart
