"""Choose a model and images, see what it finds."""

import csv
import io
import math
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from PIL import Image

from sightline.app import shown
from sightline.app.choosing import choose_images
from sightline.app.shown import Pictured
from sightline.errors import SightlineError
from sightline.report.name import one_line
from sightline.structures import Detections

if TYPE_CHECKING:
    from sightline.models.predictor import Predictor

_SIDES = ("xmin", "ymin", "xmax", "ymax")


def page() -> None:
    """Draw the page."""
    models = shown.model_names()
    if not models:
        shown.empty("train a model first.", "sightline train DATASET --register NAME")
        return
    with st.sidebar:
        ref = models[st.selectbox("Model", list(models), format_func=one_line, key="detect-model")]
        pictures = choose_images("detect")
    if not pictures:
        st.info("Choose images on the left.", icon=":material/image_search:")
        return
    predictor = shown.model(ref)
    with st.sidebar:
        chosen = shown.LOWEST if predictor.task == "classification" else predictor.resolve_threshold(None)
        lowest = max(math.floor(chosen * 100 + 1e-6) / 100, shown.LOWEST)
        threshold = st.slider("Lowest score", shown.LOWEST, 1.0, lowest, 0.01, key=f"detect-score-{ref}")
        kept = st.multiselect(
            "Classes", predictor.classes, placeholder="All", format_func=one_line, key=f"detect-kept-{ref}"
        )
        has_truth = any(pictured.truth is not None for pictured in pictures)
        beside = st.toggle(
            "Ground truth beside it", value=has_truth, disabled=not has_truth, key=f"detect-truth-{has_truth}"
        )
    found: list[tuple[Pictured, Detections]] = []
    for pictured in pictures:
        try:
            found.append((pictured, _filtered(shown.found_in(predictor, pictured), threshold, kept)))
        except SightlineError as error:
            shown.trouble(str(error))
    if len(found) == 1:
        _one(predictor, *found[0], beside=beside)
    else:
        _several(predictor, found, beside=beside)
    _downloads(predictor, found)


def _filtered(found: Detections, threshold: float, kept: list[str]) -> Detections:
    return found[(found.scores >= threshold) & np.array([not kept or name in kept for name in found.names], bool)]


def _one(predictor: "Predictor", pictured: Pictured, found: Detections, *, beside: bool) -> None:
    picture = _draw(predictor, pictured, found)
    st.text(f"{shown.name_text(pictured.name)}: {len(found)} found, {picture.width} x {picture.height} pixels")
    place, table = st.container(), st.container()
    with table:
        event = st.dataframe(
            _rows(pictured, found),
            hide_index=True,
            column_order=["label", "score", *_SIDES],
            column_config={
                "score": st.column_config.ProgressColumn(min_value=0, max_value=1, format="%.2f"),
                **{side: st.column_config.NumberColumn(format="%.1f") for side in _SIDES},
            },
            height=min(38 + 35 * max(len(found), 1), 250),
            on_select="rerun",
            selection_mode="single-row",
            key=f"detect-table-{pictured.key}-{len(found)}",  # Or else a tick would stay for another row.
        )
        rows: list[int] = event["selection"]["rows"]
        row = rows[0] if rows and rows[0] < len(found) else None
        zoom = st.slider("Zoom, around the ticked row or the middle", 1.0, 16.0, 4.0 if row is not None else 1.0, 0.5)
    box = found.boxes[row].tolist() if row is not None else None
    with place:
        columns = st.columns(2) if beside and pictured.truth is not None else [st.container()]
        with columns[0]:
            shown.picture(shown.close_up(picture, box, zoom), name=pictured.name)
        if len(columns) > 1:
            columns[0].text(f"{len(found)} found")
            with columns[1]:
                shown.picture(shown.close_up(_truth(pictured), box, zoom), name=f"ground truth of {pictured.name}")
                st.text(pictured.truth_text)


def _several(predictor: "Predictor", found: list[tuple[Pictured, Detections]], *, beside: bool) -> None:
    total = sum(len(one) for _, one in found)
    st.text(f"{len(found)} images, {total} found")
    for start in range(0, len(found), 2):
        for place, (pictured, one) in zip(st.columns(2), found[start : start + 2], strict=False):
            with place:
                pair = st.columns(2) if beside and pictured.truth is not None else [st.container()]
                with pair[0]:
                    shown.picture(_draw(predictor, pictured, one), name=pictured.name)
                if len(pair) > 1:
                    with pair[1]:
                        shown.picture(_truth(pictured), name=f"ground truth of {pictured.name}")
                said = f"{len(one)} found" + (f", {pictured.truth_text}" if pictured.truth_text else "")
                st.text(f"{shown.last_part(pictured.name)}: {said}")


def _draw(predictor: "Predictor", pictured: Pictured, found: Detections) -> Image.Image:
    return shown.drawn(pictured, found.boxes, found.labels, predictor.classes, found.scores)


def _truth(pictured: Pictured) -> Image.Image:
    assert pictured.truth is not None
    return shown.drawn(pictured, pictured.truth.boxes, pictured.truth.labels, pictured.classes)


def _rows(pictured: Pictured, found: Detections) -> list[dict[str, Any]]:
    return [
        {"image": pictured.name, "label": name, "score": score, **dict(zip(_SIDES, map(float, box), strict=True))}
        for name, score, *box in found.rows()
    ]


def _downloads(predictor: "Predictor", found: list[tuple[Pictured, Detections]]) -> None:
    if not found:
        return
    left, right, _ = st.columns([1, 1, 3])
    one = found[0] if len(found) == 1 else None
    left.download_button(
        "Picture" if one else "Pictures",
        (lambda: shown.png(_draw(predictor, *one))) if one else (lambda: _zipped(predictor, found)),
        file_name="found.png" if one else "found.zip",
        icon=":material/image:",
        on_click="ignore",
        key="detect-pictures",
    )
    right.download_button(
        "Rows",
        lambda: _csv(found),
        file_name="found.csv",
        mime="text/csv",
        icon=":material/table:",
        on_click="ignore",
        key="detect-rows",
    )


def _zipped(predictor: "Predictor", found: list[tuple[Pictured, Detections]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (pictured, one) in enumerate(found, 1):
            archive.writestr(f"{number:03}.png", shown.png(_draw(predictor, pictured, one)))
    return out.getvalue()


def _csv(found: list[tuple[Pictured, Detections]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, ["image", "label", "score", *_SIDES])
    writer.writeheader()
    for pictured, one in found:
        writer.writerows(_rows(pictured, one))
    return out.getvalue()
