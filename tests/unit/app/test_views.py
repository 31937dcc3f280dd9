"""Pages without a browser: what is asked of the model, what is said when something is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

import sightline
from sightline.app.browse_root import BROWSE_VARIABLE
from sightline.config import load_config
from sightline.data.decode import encode_jpeg
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model
from sightline.models.predictor import Predictor


def detect_page() -> None:
    from sightline.app.views import detect

    detect.page()


def detections_page() -> None:
    from sightline.app.views import detections

    detections.page()


def compare_page() -> None:
    from sightline.app.views import compare

    compare.page()


def runs_page() -> None:
    from sightline.app.views import runs

    runs.page()


def data_page() -> None:
    from sightline.app.views import data

    data.page()


PAGES = (detect_page, detections_page, compare_page, runs_page, data_page)


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import streamlit as st

    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "workspace"))
    yield tmp_path / "workspace"
    st.cache_data.clear()
    st.cache_resource.clear()


def run(page: Any) -> AppTest:
    test = AppTest.from_function(page, default_timeout=60).run()
    assert not test.exception
    return test


def text_of(test: AppTest) -> str:
    return "\n".join(str(one.value) for kind in (test.text, test.info, test.caption, test.success) for one in kind)


def save_model(place: Path, name: str, classes: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = make_model(name, num_classes=len(classes), size=64)
    if name == "nano":
        with torch.no_grad():
            model.get_parameter("net.class_map.bias").fill_(0)
    bundle = save_bundle(place, model.state_dict(), describe(model, name=name, classes=classes), {})
    sightline.register(bundle.path, name)


def photos(place: Path, count: int) -> Path:
    place.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), np.uint8)
        (place / f"{number}.jpg").write_bytes(encode_jpeg(pixels))
    return place


@pytest.mark.parametrize("page", PAGES)
def test_a_first_visit_is_told_what_to_do(page: Any, workspace: Path) -> None:
    test = run(page)
    assert "There is nothing here yet" in text_of(test)
    assert "sightline" in test.code[0].value
    assert [button.label for button in test.button] == ["Run the demo"]
    assert not workspace.exists()


def test_a_model_is_asked_once_whatever_is_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sightline.synth("shapes", to="shapes", images=60, size=64, seed=1)
    save_model(tmp_path / "model", "nano", sightline.open_dataset("shapes").classes)
    asked: list[int] = []
    detect = Predictor.detect
    monkeypatch.setattr(Predictor, "detect", lambda *args: asked.append(1) or detect(*args))
    test = run(detect_page)
    assert len(asked) == 1
    for threshold in (0.1, 0.9, 0.5):
        test.sidebar.slider[0].set_value(threshold).run()
        assert not test.exception
    test.sidebar.multiselect[0].set_value([sightline.open_dataset("shapes").classes[0]]).run()
    assert not test.exception
    assert len(asked) == 1
    test.sidebar.number_input[1].set_value(2).run()
    assert not test.exception
    assert len(asked) == 2


def test_a_classifier_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "model", "resnet18", ("cat", "dog"))
    place = photos(tmp_path / "photos", 2)
    monkeypatch.setenv(BROWSE_VARIABLE, str(tmp_path))
    test = run(detect_page)
    test.sidebar.segmented_control[0].set_value("Folder").run()
    test.sidebar.text_input[0].set_value("photos").run()
    assert not test.exception
    assert "1 found" in text_of(test)
    sightline.detect("resnet18/1", place, "job", engine="torch", threads=1)
    test = run(detections_page)
    assert {metric.label: metric.value for metric in test.metric}["Detections"] == "2"


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "model", "nano", ("a",))
    monkeypatch.setenv(BROWSE_VARIABLE, str(tmp_path))
    test = run(detect_page)
    test.sidebar.segmented_control[0].set_value("Folder").run()
    for text in ("nothing/here", "/etc", "s3://bucket/photos?endpoint_override=127.0.0.1:1"):
        test.sidebar.text_input[0].set_value(text).run()
        assert not test.exception
        assert f"{text!r} is not " in text_of(test)


@pytest.mark.parametrize("page", [detect_page, compare_page])
def test_folders_are_not_offered_unless_a_root_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Any
) -> None:
    for number, classes in enumerate([("a",), ("b",)]):
        save_model(tmp_path / f"model-{number}", "nano", classes)
    assert "Folder" not in run(page).sidebar.segmented_control[0].options
    monkeypatch.setenv(BROWSE_VARIABLE, str(tmp_path))
    assert "Folder" in run(page).sidebar.segmented_control[0].options


def test_images_that_are_gone_and_images_that_never_were(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "nano", ("a", "b"))
    place = photos(tmp_path / "photos", 3)
    (place / "broken.jpg").write_bytes(b"nothing")
    sightline.detect("nano/1", place, "job", engine="torch", threads=1, max_rejected=1.0)
    (place / "0.jpg").unlink()
    said = text_of(run(detections_page))
    assert "rejected" in said
    assert "not found" in said or "not there" in said or "any more" in said, said


def test_rows_in_another_database_are_named(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "nano", ("a", "b"))
    place = photos(tmp_path / "photos", 1)
    url = f"sqlite:///{tmp_path}/found.db"
    sightline.detect("nano/1", place, url, engine="torch", threads=1)
    assert "query that database directly" in text_of(run(detections_page))


def test_runs_are_put_side_by_side() -> None:
    sightline.synth("shapes", to="shapes", images=24, size=64, seed=1)
    for name, batch in (("one", 4), ("two", 8)):
        train = {"model": "nano", "epochs": 1, "size": 64, "batch": batch, "threads": 1}
        sightline.train("shapes", name=name, config=load_config(flags={"train": train}))
    test = run(runs_page)
    assert "two · nano on shapes" in text_of(test)

    def both() -> None:
        import sightline
        from sightline.app.views import runs

        runs._side_by_side(sightline.list_runs())

    test = run(both)
    shapes = test.dataframe[0].value
    assert set(shapes["run"]) == {"one", "two"}
    assert {"workers", "images/s", "cpu"} <= set(shapes.columns)
    assert any("train.batch" in set(frame.value.iloc[:, 0]) for frame in test.dataframe[1:])


def test_a_dataset_is_inspected_live(tmp_path: Path) -> None:
    sightline.synth("shapes", to="shapes", images=30, size=64, seed=1)
    test = run(data_page)
    assert {metric.label: metric.value for metric in test.metric}["Images"] == "30"
    for kind in ("cat", "dog"):
        photos_of = tmp_path / "pets" / kind
        photos_of.parent.mkdir(exist_ok=True)
        photos(photos_of, 3)
    sightline.ingest(tmp_path / "pets", "pets")
    test = run(data_page)
    test.sidebar.selectbox[0].set_value("pets").run()
    assert not test.exception
    assert "truth: cat" in text_of(test) or "truth: dog" in text_of(test)


def test_one_model_is_not_compared(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "nano", ("a",))
    assert "two models are needed" in text_of(run(compare_page))
