"""Two models on the same images, disagreements first."""

import json
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

import sightline
from sightline.app import shown
from sightline.app.browse_root import browse_root, open_below
from sightline.app.choosing import choose_dataset, choose_folder
from sightline.app.shown import Pictured
from sightline.report.name import one_line

if TYPE_CHECKING:
    from PIL import Image

    from sightline.detection.disagreement import Comparison, Disagreement
    from sightline.detection.item import ImageList
    from sightline.detection.sources.folder import FolderSource
    from sightline.models.predictor import Predictor
    from sightline.structures import Detections

_ON_PAGE = 10


def page() -> None:
    """Draw the page."""
    models = shown.model_names()
    if len(models) < 2:
        shown.empty("two models are needed.", "sightline train DATASET --register NAME    # twice")
        return
    names = list(models)
    with st.sidebar:
        first = st.selectbox("First model", names, format_func=one_line, key="compare-first")
        second = st.selectbox("Second model", names, index=1, format_func=one_line, key="compare-second")
        kinds = ["Dataset", "Folder"] if browse_root() else ["Dataset"]
        kind = st.segmented_control("Images from", kinds, default="Dataset", key="compare-kind")
        with shown.telling():
            source, where = _source(kind or "Dataset")
        limit = st.number_input("At most so many images", 1, 5000, 200, key="compare-limit")
        go = st.button("Compare", type="primary", disabled=not source, key="compare-go")
    asked = (models[first], models[second], source, where, int(limit))
    if go:
        st.session_state["compare-asked"] = asked
        _compare.clear()  # The images, or a run, may be others by now.
        _listed.clear()
    if st.session_state.get("compare-asked") != asked:
        st.info("Choose two models and images on the left, then press Compare.", icon=":material/compare:")
        return
    with shown.telling():
        compared = _compare(*asked, shown.model(asked[0]), shown.model(asked[1]))
        _show(compared, asked, (first, second))


def _source(kind: str) -> tuple[str, str | None]:
    if kind == "Folder":
        return choose_folder("compare"), None
    chosen = choose_dataset("compare")
    if chosen is None:
        return "", None
    split = chosen[1].replace("'", "''")
    return chosen[0], f"split='{split}'"


@st.cache_data(max_entries=8, show_spinner="Asking both models")
def _compare(
    first: str, second: str, source: str, where: str | None, limit: int, _one: "Predictor", _other: "Predictor"
) -> "Comparison":
    return sightline.compare_images(_one, _other, _opened(source, where), where=where, limit=limit)


@st.cache_resource(max_entries=8, show_spinner=False)
def _listed(source: str, where: str | None, limit: int, skipped: int) -> "ImageList":
    return sightline.list_images(_opened(source, where), where=where, limit=limit + skipped)


def _opened(source: str, where: str | None) -> "str | FolderSource":
    """A dataset has a condition, its split; what has none is a folder."""
    return source if where is not None else open_below(source)


def _show(compared: "Comparison", asked: tuple[str, str, str, str | None, int], names: tuple[str, str]) -> None:
    differing = [one for one in compared.found if one.weight > 0]
    figures = {"Images": compared.images, "They disagree on": len(differing), "Not readable": compared.skipped}
    shown.figures({label: f"{value:,}" for label, value in figures.items()})
    if not differing:
        st.success("They agree on every image.", icon=":material/check:")
        return
    picked = _table(differing)
    _download(compared, [differing[row] for row in picked])
    number = shown.page_of(len(differing), _ON_PAGE, key="compare-page")
    listed = _listed(*asked[2:], compared.skipped)
    items = {item.image_id: item for item in listed.items}
    for one in differing[number * _ON_PAGE : (number + 1) * _ON_PAGE]:
        item = items.get(one.image_id)
        data = listed.read(item) if item else "it is not there any more"
        st.text(f"{shown.name_text(one.uri)}: {_difference(one)}")
        if not isinstance(data, bytes):
            st.text(one_line(str(data), limit=200))
            continue
        for place, found, name in zip(st.columns(2), (one.first, one.second), names, strict=True):
            with place:
                shown.picture(_drawn(Pictured(one.uri, data), found, compared.classes), name=one.uri)
                st.text(one_line(name, limit=60))


def _table(differing: "list[Disagreement]") -> list[int]:
    """Tick what is to be labelled again; gives the rows."""
    st.caption("Tick the images that people should label again.")
    event = st.dataframe(
        [
            {
                "image": shown.last_part(one.uri),
                "disagreement": one.weight,
                "only first": len(one.only_first),
                "only second": len(one.only_second),
                "another class": len(one.other_class),
            }
            for one in differing
        ],
        hide_index=True,
        height=250,
        column_config={"disagreement": st.column_config.NumberColumn(format="%.2f")},
        on_select="rerun",
        selection_mode="multi-row",
        key="compare-table",
    )
    rows: list[int] = event["selection"]["rows"]
    return [row for row in rows if row < len(differing)]


def _download(compared: "Comparison", picks: "list[Disagreement]") -> None:
    from sightline.detection.disagreement import relabelling_list

    st.download_button(
        f"Relabelling list (COCO), {len(picks)} picked" if picks else "Relabelling list (COCO), all of them",
        lambda: json.dumps(
            relabelling_list(picks or [one for one in compared.found if one.weight > 0], compared.classes), indent=1
        ),
        file_name="relabel.json",
        mime="application/json",
        icon=":material/download:",
        on_click="ignore",
        key="compare-list",
    )


def _difference(one: "Disagreement") -> str:
    parts = {
        "only the first": len(one.only_first),
        "only the second": len(one.only_second),
        "named otherwise": len(one.other_class),
        "alike": len(one.matched),
    }
    return ", ".join(f"{count} {text}" for text, count in parts.items() if count)


def _drawn(pictured: Pictured, found: "Detections", classes: tuple[str, ...]) -> "Image.Image":
    """One numbering for both models, so that a class has one colour."""
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[name] for name in found.names], np.int32)
    return shown.drawn(pictured, found.boxes, labels, classes, found.scores)
