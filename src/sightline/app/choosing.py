"""Where images to look at come from: a dataset, a past job, a folder, or an upload."""

from typing import TYPE_CHECKING

import streamlit as st

import sightline
from sightline.app import shown
from sightline.app.browse_root import browse_root, folder_below, open_below
from sightline.app.shown import Pictured
from sightline.report.name import one_line

if TYPE_CHECKING:
    from sightline.data.dataset import Dataset
    from sightline.detection.browse import JobBrowser

MOST = 24
_LISTED = 500


def choose_images(key: str) -> list[Pictured]:
    """The images that somebody has chosen in the sidebar.

    Args:
        key: Of the page, for its widgets.
    """
    kinds = {"Dataset": _from_dataset, "Job": _from_job}
    if browse_root():
        kinds["Folder"] = _from_folder
    kinds["Upload"] = _from_upload
    kind = st.segmented_control("Images from", list(kinds), default="Dataset", key=f"{key}-kind")
    with shown.telling():
        return kinds[kind](key) if kind else []


def choose_dataset(key: str) -> tuple[str, str, str] | None:
    """A dataset, one of its splits, and the hash of its content."""
    names = {info.name: info for info in sightline.list_datasets()}
    if not names:
        st.caption("There is no dataset yet: `sightline ingest DIR --to NAME` makes one.")
        return None
    name = st.selectbox("Dataset", list(names), format_func=one_line, key=f"{key}-dataset")
    splits = list(names[name].splits)
    last = splits.index("test") if "test" in splits else len(splits) - 1
    split = st.selectbox("Split", splits, index=last, format_func=one_line, key=f"{key}-split-{name}")
    return name, split, names[name].content_hash


def _from_dataset(key: str) -> list[Pictured]:
    chosen = choose_dataset(key)
    if chosen is None:
        return []
    dataset = _open(*chosen)
    first, count = _window(key, len(dataset))
    return [
        Pictured(sample.file_name, bytes(sample.image), sample.annotation, dataset.classes)
        for sample in (dataset[place] for place in range(first, min(first + count, len(dataset))))
    ]


def _from_job(key: str) -> list[Pictured]:
    jobs = [job.name for job in sightline.list_detections()]
    if not jobs:
        st.caption("There is no job yet: `sightline detect MODEL FOLDER` makes one.")
        return []
    name = st.selectbox("Job", jobs, format_func=one_line, key=f"{key}-job")
    browser = browse(name)
    first, count = _window(key, browser.totals().images)
    rows = browser.images(order="name", start=first, count=count)
    return _readable([(row["uri"], data) for row, data in zip(rows, _ordered(browser.read(rows), rows), strict=True)])


def choose_folder(key: str) -> str:
    """A folder below the directory that may be browsed; empty while none is named."""
    root = browse_root()
    if root is None:
        return ""
    text = st.text_input(
        "Folder", key=f"{key}-folder", placeholder=". or a folder below", help="Below the directory of --browse."
    )
    return folder_below(root, text) if text else ""


def _from_folder(key: str) -> list[Pictured]:
    folder = choose_folder(key)
    if not folder:
        return []
    source = sightline.list_images(open_below(folder), limit=_LISTED)
    if not source.items:
        st.caption("There are no images.")
        return []
    first, count = _window(key, len(source.items))
    return _readable([(item.uri, source.read(item)) for item in source.items[first : first + count]])


def _from_upload(key: str) -> list[Pictured]:
    files = st.file_uploader(
        "Images", ["jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff"], accept_multiple_files=True, key=f"{key}-upload"
    )
    if len(files) > MOST:
        st.caption(f"The first {MOST} are shown.")
    return [Pictured(file.name, file.getvalue()) for file in files[:MOST]]


def _window(key: str, total: int) -> tuple[int, int]:
    """First image and how many."""
    left, right = st.columns(2)
    first = left.number_input(f"First of {total:,}", 1, max(total, 1), 1, key=f"{key}-first")
    count = right.number_input("How many", 1, MOST, 1, key=f"{key}-count")
    return int(first) - 1, int(count)


def _ordered(data: "dict[str, bytes | sightline.SightlineError]", rows: list[dict[str, str]]) -> list[object]:
    return [data[row["image_id"]] for row in rows]


def _readable(found: "list[tuple[str, object]]") -> list[Pictured]:
    for name, data in found:
        if not isinstance(data, bytes):
            st.text(f"{shown.last_part(name)}: {one_line(str(data), limit=200)}")
    return [Pictured(name, data) for name, data in found if isinstance(data, bytes)]


@st.cache_resource(max_entries=20, show_spinner=False)
def _open(name: str, split: str, content: str) -> "Dataset":
    return sightline.open_dataset(name).select(split)


def browse(name: str) -> "JobBrowser":
    """A job to look around in, opened once for all visitors."""
    with shown.telling():
        job = next(job for job in sightline.list_detections() if job.name == name)
        return _browser(name, job.id, job.finished)


@st.cache_resource(max_entries=20, show_spinner=False)
def _browser(name: str, id: str, finished: str | None) -> "JobBrowser":
    return sightline.browse(name)
