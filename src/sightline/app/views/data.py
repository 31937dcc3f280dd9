"""A dataset: counts, sizes, what to look at, and its images."""

from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

import sightline
from sightline.app import shown
from sightline.app.choosing import choose_dataset
from sightline.app.shown import Pictured
from sightline.report import charts
from sightline.report.name import one_line
from sightline.report.quantity import bytes_text

if TYPE_CHECKING:
    import altair as alt
    from PIL import Image

    from sightline.data.dataset import Dataset
    from sightline.report.inspection import Inspection

_ON_PAGE = 12
_BADGES = {"problem": "red", "warning": "orange", "note": "gray"}


def page() -> None:
    """Draw the page."""
    if not sightline.list_datasets():
        shown.empty("bring annotated images in first.", "sightline ingest DIR --to NAME")
        return
    with st.sidebar:
        chosen = choose_dataset("data")
    assert chosen is not None
    name, split, content = chosen
    with shown.telling():
        dataset = sightline.open_dataset(name)
        inspection = _inspect(name, content)
        _figures(inspection)
        _charts(inspection)
        _findings(inspection)
        _images(dataset.select(split), split)


@st.cache_data(max_entries=8, show_spinner="Looking at every image once")
def _inspect(name: str, content: str) -> "Inspection":
    return sightline.inspect(name)


def _figures(inspection: "Inspection") -> None:
    figures = {
        "Images": f"{inspection.num_images:,}",
        "Boxes": f"{inspection.num_boxes:,}",
        "Classes": f"{len(inspection.classes):,}",
        "Without boxes": f"{inspection.num_empty:,}",
        "Copies": f"{inspection.num_duplicates:,}",
        "Size": bytes_text(inspection.image_bytes),
    }
    if inspection.task != "detection":
        del figures["Boxes"], figures["Without boxes"]
    shown.figures(figures)


def _charts(inspection: "Inspection") -> None:
    drawn: dict[str, alt.Chart | alt.LayerChart] = {"Classes": charts.class_chart(inspection, limit=15)}
    boxes = inspection.boxes
    if boxes and inspection.boxes_per_image and inspection.num_boxes > inspection.num_ignored_boxes:
        drawn["Boxes in an image"] = charts.count_chart(inspection.boxes_per_image, title="boxes", unit="images")
        drawn["Area of boxes"] = charts.size_chart(boxes)
    shown.charts(drawn, key="data")


def _findings(inspection: "Inspection") -> None:
    if not inspection.findings and not inspection.rejects:
        st.success("Nothing suspicious was found.", icon=":material/check:")
        return
    with st.expander(f"What to look at ({len(inspection.findings) + len(inspection.rejects)})", expanded=True):
        for finding in inspection.findings:
            st.badge(finding.severity, color=_BADGES[finding.severity])  # type: ignore[arg-type]
            count = f", {finding.count:,} {finding.unit}" if finding.count else ""
            names = f": {', '.join(one_line(name, limit=40) for name in finding.names[:10])}" if finding.names else ""
            st.text(f"{finding.kind}{count}{names}. {finding.advice}")
        if inspection.rejects:
            st.caption("Rejected when the dataset was made")
            st.dataframe([reject.model_dump() for reject in inspection.rejects], hide_index=True)


def _images(dataset: "Dataset", split: str) -> None:
    if not len(dataset):
        return
    number = shown.page_of(len(dataset), _ON_PAGE, key=f"data-page-{split}")
    places = range(number * _ON_PAGE, min((number + 1) * _ON_PAGE, len(dataset)))
    pictures = [
        Pictured(sample.file_name, bytes(sample.image), sample.annotation, dataset.classes)
        for sample in (dataset[place] for place in places)
    ]
    shown.gallery([(f"{shown.last_part(one.name)} · {one.truth_text}", partial(_picture, one)) for one in pictures])


def _picture(pictured: Pictured) -> "Image.Image":
    assert pictured.truth is not None
    return shown.drawn(pictured, pictured.truth.boxes, pictured.truth.labels, pictured.classes)
