"""Browse what a job has found."""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

import sightline
from sightline.app import shown
from sightline.app.choosing import browse
from sightline.detection.browse import Figures, Kind, Order, Selection, Totals
from sightline.report.job_report import pareto_chart, score_chart, time_chart
from sightline.report.name import one_line

if TYPE_CHECKING:
    import altair as alt
    from PIL import Image

    from sightline.detection.again import Row
    from sightline.detection.browse import JobBrowser

_KINDS: dict[str, Kind] = {"All": "all", "Found": "found", "Empty": "empty", "Rejected": "rejected"}
_ORDERS: dict[str, Order] = {
    "mixed": "any",
    "least sure first": "unsure",
    "surest first": "sure",
    "most detections first": "most",
    "by name": "name",
}
_ON_PAGE = 12
_PICTURE_PX = 640
_MOST_ROWS = 1_000_000
"""A browser takes the download whole; more than this is for `sightline query`."""


def page() -> None:
    """Draw the page."""
    jobs = {job.name: job for job in sightline.list_detections()}
    if not jobs:
        shown.empty("run a model over images first.", "sightline detect MODEL FOLDER --to NAME")
        return
    with st.sidebar:
        name = st.selectbox("Job", list(jobs), format_func=one_line, key="detections-job")
    browser = browse(name)
    with shown.telling():
        selection, order = _choose(browser)
        figures = _count(browser.job.name, browser.job.finished, selection, browser)
        _figures(figures.totals)
        _charts(figures)
        _gallery(browser, selection, order, figures.totals.images)
        _export(browser, selection, figures.totals)


def _choose(browser: "JobBrowser") -> tuple[Selection, Order]:
    with st.sidebar:
        kind = st.segmented_control("Images", list(_KINDS), default="All", key="detections-kind")
        labels = st.multiselect(
            "Classes", list(browser.labels), placeholder="All", format_func=one_line, key="detections-labels"
        )
        lowest, highest = st.slider("Score", 0.0, 1.0, (0.0, 1.0), 0.01, key="detections-score")
        part = st.text_input("Part of the name", key="detections-name")
        order = st.selectbox("Order", list(_ORDERS), key="detections-order")
        st.caption("model")
        st.text(browser.job.model)
        st.caption("source")
        st.text(one_line(browser.job.source, limit=200))
    return Selection(_KINDS[kind or "All"], tuple(labels), lowest, highest, part), _ORDERS[order]


@st.cache_data(ttl=60, max_entries=200, show_spinner=False)
def _count(job: str, finished: str | None, selection: Selection, _browser: "JobBrowser") -> Figures:
    return _browser.figures(selection)


def _figures(totals: Totals) -> None:
    usable = totals.images - totals.rejected
    share = f"{totals.found / usable:.1%}" if usable else "-"
    shown.figures(
        {
            "Images": f"{totals.images:,}",
            "With a detection": share,
            "Detections": f"{totals.detections:,}",
            "Rejected": f"{totals.rejected:,}",
        }
    )


def _charts(figures: Figures) -> None:
    drawn: dict[str, alt.Chart | alt.LayerChart] = {}
    if figures.classes:
        drawn |= {"Classes": pareto_chart(figures.classes, limit=12), "Scores": score_chart(figures.scores)}
    if figures.moments:
        drawn["Over time"] = time_chart(figures.moments)
    if drawn:
        shown.charts(drawn, key="detections")


def _gallery(browser: "JobBrowser", selection: Selection, order: Order, total: int) -> None:
    if not total:
        st.info("No image is like that.", icon=":material/search_off:")
        return
    number = shown.page_of(total, _ON_PAGE, key=f"detections-page-{selection}-{order}")
    rows = browser.images(selection, order=order, start=number * _ON_PAGE, count=_ON_PAGE)
    data = browser.read([row for row in rows if row["status"] == "ok"])
    shown.gallery([(_caption(row), partial(_picture, browser, row, data.get(row["image_id"]))) for row in rows])


def _picture(browser: "JobBrowser", row: "Row", data: "bytes | sightline.SightlineError | None") -> "Image.Image":
    if data is None:
        raise sightline.SightlineError(f"rejected when it was to be {row['stage']}: {row['reason']}")
    if isinstance(data, sightline.SightlineError):
        raise data
    return browser.draw(row, data, side=_PICTURE_PX)


def _caption(row: "Row") -> str:
    return f"{shown.last_part(row['uri'])} · {len(row['boxes'])}"


def _export(browser: "JobBrowser", selection: Selection, totals: Totals) -> None:
    if max(totals.detections, totals.images) > _MOST_ROWS:
        st.caption("This selection is too large for a download: `sightline query` writes any number of rows.")
        return
    for place, kind in zip(st.columns([1, 1, 3]), ("csv", "parquet"), strict=False):
        place.download_button(
            f"Selection as {kind.upper() if kind == 'csv' else 'Parquet'}",
            partial(_file, browser, selection, kind),
            file_name=f"selection.{kind}",
            icon=":material/download:",
            on_click="ignore",
            key=f"detections-{kind}",
        )


def _file(browser: "JobBrowser", selection: Selection, kind: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="sightline-app-") as directory:
        file = Path(directory) / f"selection.{kind}"
        browser.export(selection, file)
        return file.read_bytes()
