"""Looking around in a job gives what going through its rows in Python gives."""

import csv
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes import jpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sightline
from sightline.detection.browse import JobBrowser, Kind, Order, Selection
from sightline.errors import ConfigError, NotFoundError, SightlineError
from sightline.models.bundle import Bundle

CLASSES = ("circle", "square", "triangle")
IMAGES = 23


@pytest.fixture(scope="module", params=["parquet", "duckdb"])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> JobBrowser:
    """A job over images of different hours, of which two cannot be read."""
    workspace, folder = tmp_path_factory.mktemp("browse"), tmp_path_factory.mktemp("photos")
    for number in range(IMAGES):
        file = folder / f"it's {number:02}.jpg"
        file.write_bytes(b"nothing" if number in (5, 11) else jpeg(seed=number))
        os.utime(file, (1_700_000_000 + number * 3600,) * 2)
    to = "job" if request.param == "parquet" else tmp_path_factory.mktemp("db") / "found.duckdb"
    settings = {"engine": "torch", "threads": 1, "threshold": 0.3, "chunk": 5, "max_rejected": 1.0}
    name = sightline.detect(str(bundle.path), folder, to, workspace=workspace, **settings).name
    return sightline.browse(name, workspace=workspace)


def rows_of(browser: JobBrowser) -> list[dict[str, Any]]:
    return browser.ask("select image_id, uri, status, boxes from rows")


def chosen_of(row: dict[str, Any], selection: Selection) -> list[dict[str, Any]]:
    return [
        box
        for box in row["boxes"]
        if selection.lowest <= box["score"] <= selection.highest
        and (not selection.labels or box["label"] in selection.labels)
    ]


def is_chosen(row: dict[str, Any], selection: Selection) -> bool:
    found = len(chosen_of(row, selection)) > 0
    wanted = {
        "all": True,
        "found": found,
        "empty": not found and row["status"] == "ok",
        "rejected": row["status"] == "rejected",
    }
    return wanted[selection.kind] and selection.name.lower() in row["uri"].lower()


kinds: list[Kind] = ["all", "found", "empty", "rejected"]
selections = st.builds(
    Selection,
    kind=st.sampled_from(kinds),
    labels=st.lists(st.sampled_from([*CLASSES, "it's another"]), unique=True, max_size=3).map(tuple),
    lowest=st.sampled_from([0.0, 0.35, 0.5, 0.9]),
    highest=st.sampled_from([1.0, 0.6]),
    name=st.sampled_from(["", "1", "IT'S 0", "%", "none like this"]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(selection=selections)
def test_figures_and_images_are_those_of_the_rows(browser: JobBrowser, selection: Selection) -> None:
    rows = [row for row in rows_of(browser) if is_chosen(row, selection)]
    boxes = [box for row in rows for box in chosen_of(row, selection)]
    totals = browser.totals(selection)
    assert (totals.images, totals.detections) == (len(rows), len(boxes))
    assert totals.found == sum(bool(chosen_of(row, selection)) for row in rows)
    assert totals.rejected == sum(row["status"] == "rejected" for row in rows)
    counts = {name: sum(box["label"] == name for box in boxes) for name in CLASSES}
    assert {one.name: one.detections for one in browser.classes(selection)} == {k: n for k, n in counts.items() if n}
    assert sum(browser.scores(selection)) == len(boxes)
    figures = browser.figures(selection)
    assert (figures.totals, figures.scores) == (totals, browser.scores(selection))
    assert {one.name: one.detections for one in figures.classes} == {k: n for k, n in counts.items() if n}
    assert [one.mean_score for one in figures.classes] == pytest.approx(
        [one.mean_score for one in browser.classes(selection)]
    )
    assert sum(moment.found for moment in browser.over_time(selection)) in (0, totals.found)
    shown = browser.images(selection, order="name", count=100)
    assert [row["image_id"] for row in shown] == [row["image_id"] for row in sorted(rows, key=lambda row: row["uri"])]
    for row in shown:
        scores = [box["score"] for box in row["boxes"]]
        assert scores == sorted((box["score"] for box in chosen_of(_row(rows, row), selection)), reverse=True)


def _row(rows: list[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in rows if row["image_id"] == like["image_id"])


def test_orders_and_pages(browser: JobBrowser) -> None:
    found = Selection(kind="found")
    orders: list[Order] = ["any", "unsure", "sure", "most", "name"]
    for order in orders:
        whole = [row["image_id"] for row in browser.images(found, order=order, count=100)]
        pages = [browser.images(found, order=order, start=start, count=4) for start in range(0, len(whole), 4)]
        assert [row["image_id"] for page in pages for row in page] == whole
    unsure = [min(box["score"] for box in row["boxes"]) for row in browser.images(found, order="unsure", count=100)]
    assert unsure == sorted(unsure)
    most = [len(row["boxes"]) for row in browser.images(found, order="most", count=100)]
    assert most == sorted(most, reverse=True)


def test_time_is_that_of_the_files(browser: JobBrowser) -> None:
    moments = browser.over_time()
    assert moments[0].at == 1_700_000_000_000
    assert sum(moment.images for moment in moments) == IMAGES - 2
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)


def test_images_are_read_and_drawn_again(browser: JobBrowser) -> None:
    rows = browser.images(Selection(kind="found"), count=3)
    data = browser.read(rows)
    for row in rows:
        image = data[row["image_id"]]
        assert isinstance(image, bytes)
        assert max(browser.draw(row, image, side=50).size) <= 50
    (rejected,) = browser.images(Selection(kind="rejected"), order="name", count=1)
    assert rejected["reason"]
    assert isinstance(browser.read([rejected])[rejected["image_id"]], bytes | SightlineError)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_selection_is_written_whole(browser: JobBrowser, kind: str, tmp_path: Path) -> None:
    selection = Selection(labels=("circle",), lowest=0.35)
    to = tmp_path / f"it's mine.{kind}"
    totals = browser.totals(selection)
    written = browser.export(selection, to)
    with to.open(newline="", errors="replace") as file:
        rows: list[Any] = list(csv.DictReader(file)) if kind == "csv" else pq.read_table(to).to_pylist()
    assert len(rows) == written == totals.detections + totals.images - totals.found
    assert {row["label"] for row in rows} <= {"circle", "", None}
    with pytest.raises(ConfigError, match=r"\.csv or \.parquet"):
        browser.export(selection, tmp_path / "x.xlsx")


def test_many_ask_at_once(browser: JobBrowser) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: browser.totals(), range(12)))) == 1


def test_what_is_not_there_and_what_is_wrong(browser: JobBrowser) -> None:
    with pytest.raises(NotFoundError, match="there is no detection job 'nothing'"):
        sightline.browse("nothing", workspace=browser.workspace.root)
    with pytest.raises(ConfigError, match="the query failed"):
        browser.ask("select nothing from nowhere")


def test_new_rows_are_seen(tmp_path: Path, bundle: Bundle) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    settings = {"engine": "torch", "threads": 1, "workspace": tmp_path / "ws"}
    (folder / "0.jpg").write_bytes(jpeg(seed=0))
    sightline.detect(str(bundle.path), folder, "job", **settings)
    browser = sightline.browse("job", workspace=tmp_path / "ws")
    assert browser.totals().images == 1
    time.sleep(0.01)
    (folder / "1.jpg").write_bytes(jpeg(seed=1))
    sightline.detect(str(bundle.path), folder, "job", **settings)
    assert browser.totals().images == 2


def test_images_that_have_changed_are_not_shown_under_old_boxes(tmp_path: Path, bundle: Bundle) -> None:
    folder, settings = tmp_path / "photos", {"engine": "torch", "threads": 1, "workspace": tmp_path / "ws"}
    folder.mkdir()
    (folder / "0.jpg").write_bytes(jpeg(seed=0))
    sightline.detect(str(bundle.path), folder, "files", **settings)
    (folder / "0.jpg").write_bytes(jpeg(width=160, seed=1))
    sightline.synth("shapes", to="shapes", images=4, size=64, seed=1, workspace=tmp_path / "ws")
    sightline.detect(str(bundle.path), "shapes", "dataset", **settings)
    browser = sightline.browse("dataset", workspace=tmp_path / "ws")
    assert all(isinstance(one, bytes) for one in browser.read(browser.images()).values())
    sightline.synth("shapes", to="shapes", images=4, size=64, seed=2, workspace=tmp_path / "ws", replace=True)
    for name in ("files", "dataset"):
        browser = sightline.browse(name, workspace=tmp_path / "ws")
        assert {str(one) for one in browser.read(browser.images()).values() if "another one by now" in str(one)}


def test_a_job_on_its_first_run_has_no_manifest_yet(tmp_path: Path, bundle: Bundle) -> None:
    sightline.synth("shapes", to="shapes", images=4, size=64, seed=1, workspace=tmp_path)
    sightline.detect(str(bundle.path), "shapes", "job", engine="torch", threads=1, threshold=0.1, workspace=tmp_path)
    (tmp_path / "detections" / "job" / "manifest.json").unlink()
    browser = sightline.browse("job", workspace=tmp_path)
    assert browser.classes()
    assert set(browser.labels) <= set(CLASSES)


def test_a_source_without_times(tmp_path: Path, bundle: Bundle) -> None:
    sightline.synth("boards", to="boards", images=4, size=160, seed=1, workspace=tmp_path)
    settings = {"engine": "torch", "threads": 1, "workspace": tmp_path}
    name = sightline.detect(str(bundle.path), "boards", **settings).name
    assert sightline.browse(name, workspace=tmp_path).over_time() == ()


def test_images_of_a_source_are_listed(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(seed=number) if number else b"nothing")
    listed = sightline.list_images(tmp_path, limit=3)
    assert [Path(item.uri).name for item in listed.items] == ["0.jpg", "1.jpg", "2.jpg"]
    assert listed.read(listed.items[1]) == jpeg(seed=1)


@pytest.mark.parametrize("folder", ["a[b]c", "[!x]", "a*b", "what?", "status=rejected", "image_id=7"])
def test_any_path_of_a_workspace_can_be_read(folder: str, tmp_path: Path, bundle: Bundle) -> None:
    """Neither a glob pattern nor a Hive partition in the path changes what the rows say."""
    photos, workspace = tmp_path / "photos", tmp_path / folder
    photos.mkdir()
    for number in range(3):
        (photos / f"{number}.jpg").write_bytes(jpeg(seed=number))
    given = {"engine": "torch", "threads": 1, "threshold": 0.3, "chunk": 2, "workspace": workspace}
    result = sightline.detect(str(bundle.path), photos, "job", **given)
    for neighbor in ("aZb", "whatZ"):  # Two of the names match these as patterns; their rows must not be read too.
        shutil.copytree(workspace, tmp_path / neighbor)
    assert (result.summary.images, result.summary.rejected) == (3, 0)
    sql = "select status, count(*) as images from images group by 1"
    assert sightline.query(sql, workspace=workspace).to_pylist() == [{"status": "ok", "images": 3}]
    browser = sightline.browse("job", workspace=workspace)
    assert browser.totals().images == 3
    shown = browser.images(order="name")
    assert [Path(row["uri"]).name for row in shown] == ["0.jpg", "1.jpg", "2.jpg"]
    assert {row["status"] for row in shown} == {"ok"}
