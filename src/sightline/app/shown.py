"""What pages share: where they look, what they keep, and how names and pictures are shown.

Names come from other people's files. They are shown by widgets that take text as text (`st.text`, tables, the options
of a select box), never by Markdown.
"""

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from PIL import Image

import sightline
from sightline.errors import SightlineError
from sightline.report.drawing import draw_boxes
from sightline.report.name import one_line
from sightline.structures import Annotation, Detections
from sightline.workspace import Workspace

if TYPE_CHECKING:
    import altair as alt

    from sightline.models.predictor import Predictor

LOWEST = 0.05
"""Below this score nothing is shown; a model is asked once, and the slider chooses among what it said."""
_NAME = 90
_CHART_PX = 260
_EXACT_PX = 2_000_000


@dataclass(frozen=True)
class Pictured:
    """An image to look at.

    Attributes:
        data: Encoded, as it came.
        truth: What people have drawn in it, if anybody has.
        classes: The names that the truth is in.
    """

    name: str
    data: bytes
    truth: Annotation | None = None
    classes: tuple[str, ...] = ()

    @property
    def truth_text(self) -> str:
        """What people have said of it, in words."""
        if self.truth is None:
            return ""
        if self.truth.label is not None:
            return f"truth: {one_line(self.classes[self.truth.label], limit=40)}"
        return f"{len(self.truth)} in the ground truth"

    @property
    def key(self) -> str:
        """The same for the same bytes."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()


def workspace() -> Workspace:
    """The workspace that the app was started for."""
    return Workspace.find(None)


@contextmanager
def telling() -> Iterator[None]:
    """Show what went wrong as a sentence; the rest of the page is left out."""
    try:
        yield
    except SightlineError as error:
        trouble(str(error))
        st.stop()


def trouble(text: str) -> None:
    """A sentence that may hold names."""
    with st.container(border=True):
        st.badge("This did not work", icon=":material/error:", color="red")
        st.text(one_line(text, limit=1000))


def name_text(name: str) -> str:
    """A name on one line."""
    return one_line(name, limit=_NAME)


def last_part(name: str) -> str:
    """The end of a path or URI, which tells files apart."""
    return one_line(name.rstrip("/").rpartition("/")[2] or name, limit=_NAME)


def model_names() -> dict[str, str]:
    """What can be loaded, by what is shown: champions, other versions (newest first), runs that are not registered."""
    with telling():
        versions = [version for version in sightline.list_models() if version.bundle]
        runs = [run for run in sightline.list_runs() if run.status == "finished"]
    versions.sort(key=lambda version: "champion" not in version.aliases)
    known = {version.facts.get("run") for version in versions}
    shown = {version.label: f"{version.name}/{version.version}" for version in versions}
    return shown | {f"run {run.name}": run.name for run in runs if run.name not in known}


def model(ref: str) -> "Predictor":
    """A model, loaded once for all visitors; a run that was trained again is another."""
    from sightline.model_api import find_bundle

    with telling(), st.spinner("Loading the model"):
        # Versions do not change; to ask for the hash of a run reads all of it.
        return _load(ref, "" if "/" in ref else find_bundle(ref).hash)


@st.cache_resource(max_entries=4, show_spinner=False)
def _load(ref: str, bundle: str) -> "Predictor":
    return sightline.load_model(ref)


def found_in(predictor: "Predictor", pictured: Pictured) -> "Detections":
    """All that a model finds in an image, asked once."""
    assert predictor.bundle
    return _predict(predictor.bundle.hash, pictured.key, predictor, pictured)


@st.cache_data(max_entries=500, show_spinner="Looking")
def _predict(bundle: str, key: str, _predictor: "Predictor", _pictured: Pictured) -> "Detections":
    return _predictor.detect([_predictor.prepare_encoded(_pictured.data)], LOWEST)[0]


def drawn(
    pictured: Pictured, boxes: np.ndarray, labels: np.ndarray, classes: Sequence[str], scores: np.ndarray | None = None
) -> Image.Image:
    """An image with boxes, in its own size."""
    from sightline.data.decode import decode

    return draw_boxes(decode(pictured.data), boxes, labels, classes=classes, scores=scores)


def close_up(image: Image.Image, box: Sequence[float] | None, zoom: float) -> Image.Image:
    """A part of an image, around a box or its middle, enlarged so that pixels can be seen."""
    if zoom <= 1:
        return image
    width, height = max(round(image.width / zoom), 8), max(round(image.height / zoom), 8)
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if box is not None else (image.width / 2, image.height / 2)
    left = round(min(max(middle[0] - width / 2, 0), max(image.width - width, 0)))
    top = round(min(max(middle[1] - height / 2, 0), max(image.height - height, 0)))
    part = image.crop((left, top, min(left + width, image.width), min(top + height, image.height)))
    return part.resize((part.width * max(round(zoom), 1), part.height * max(round(zoom), 1)), Image.Resampling.NEAREST)


def picture(image: Image.Image, *, name: str) -> None:
    """A picture as wide as its place: exact, unless it is so large that sending it would take long."""
    exact = image.width * image.height <= _EXACT_PX
    st.image(image, width="stretch", output_format="PNG" if exact else "JPEG", alt=one_line(name, limit=_NAME))


def png(image: Image.Image) -> bytes:
    """A picture as a file."""
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def figures(values: Mapping[str, str]) -> None:
    """Some numbers in a row, which wraps on a narrow screen."""
    with st.container(horizontal=True, gap="large"):
        for label, value in values.items():
            st.metric(label, value, width="content")


def charts(drawn: "Mapping[str, alt.Chart | alt.LayerChart]", *, key: str) -> None:
    """Charts side by side, each under its title."""
    for place, (title, chart) in zip(st.columns(len(drawn)), drawn.items(), strict=True):
        place.caption(title)
        place.altair_chart(
            chart.properties(height=_CHART_PX), width="stretch", key=f"{key}-{title}", alt=f"{title}, as a chart"
        )


def page_of(total: int, size: int, *, key: str) -> int:
    """Which page of so many things is looked at, from 0."""
    pages = max(-(-total // size), 1)
    if pages == 1:
        return 0
    return int(st.number_input(f"Page of {pages:,}", 1, pages, 1, key=key, width=180)) - 1


def gallery(pictures: Sequence[tuple[str, Callable[[], Image.Image]]], *, columns: int = 3) -> None:
    """Pictures with their names below; one that cannot be shown says why."""
    for start in range(0, len(pictures), columns):
        for place, (name, make) in zip(st.columns(columns), pictures[start : start + columns], strict=False):
            with place:
                try:
                    picture(make(), name=name)
                except SightlineError as error:
                    st.text(one_line(str(error), limit=200))
                st.text(name)


def empty(what: str, command: str) -> None:
    """A page that has nothing to show says how to get something."""
    st.info(f"There is nothing here yet: {what}", icon=":material/info:")
    st.code(command, language="bash")
    if not sightline.list_models():
        offer_demo()


_DEMO = threading.Lock()


@contextmanager
def _released(lock: threading.Lock) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()


def offer_demo() -> None:
    """Run the small demo for somebody whose workspace is empty."""
    from sightline.demo import run_demo

    st.subheader("Or see it work first")
    st.write(
        "The demo makes synthetic circuit boards with six kinds of defects, trains a small detector on them, registers "
        "it and runs it over boards that it has not seen: about a minute on two cores. Nothing is downloaded."
    )
    if not st.button("Run the demo", type="primary", icon=":material/play_arrow:"):
        return
    if not _DEMO.acquire(blocking=False):
        st.info("Somebody is running it at this moment.", icon=":material/hourglass:")
        return
    with _released(_DEMO), st.status("Running the demo: leaving this page ends it", expanded=True) as status:
        lines: list[str] = []
        place = st.empty()

        def say(line: str) -> None:
            lines.append(line)
            place.code("\n".join(lines[-18:]), language=None)

        try:
            run_demo(workspace().root, quick=True, say=say)
        except SightlineError as error:
            status.update(label="The demo did not end", state="error")
            trouble(str(error))
            return
        status.update(label="Done", state="complete", expanded=False)
    st.rerun()
