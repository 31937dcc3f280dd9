"""A YOLO in ONNX detects like any model, through every engine that can run it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from yolo_files import CELL, NAMES, make_scene, write_yolo

import sightline
from sightline.config import DetectConfig
from sightline.engines.exported import open_exported
from sightline.engines.factory import open_engine, resolve_engine
from sightline.engines.settings import resolve_inference
from sightline.errors import ConfigError, DamagedError
from sightline.models.bundle import Bundle, open_bundle
from sightline.models.factory import FAMILIES, make_model
from sightline.structures import Detections

ENGINES = ("onnxruntime", "openvino")
STATIC = {"batch": 1, "height": 128, "width": 128}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("yolo")
    return sightline.import_model(write_yolo(place / "yolo.onnx"), place / "bundle")


def import_with(tmp_path: Path, **axes: int) -> Bundle:
    return sightline.import_model(write_yolo(tmp_path / "yolo.onnx", **axes), tmp_path / "bundle")


def as_batch(*scenes: np.ndarray) -> NDArray[np.uint8]:
    return np.stack(scenes)


def boxes_of(found: Detections) -> list[tuple[str, list[float]]]:
    return sorted((NAMES[label], box) for label, box in zip(found.labels.tolist(), found.boxes.tolist(), strict=True))


def cell(left: int, top: int) -> list[float]:
    return [left, top, left + CELL, top + CELL]


def test_a_machine_with_gpus_runs_it_as_one_without(bundle: Bundle) -> None:
    alone = resolve_inference(bundle, DetectConfig(threads=4), device="cpu", max_pixels=10**6, concurrent=True)
    assert resolve_inference(bundle, DetectConfig(threads=4), device="cuda", max_pixels=10**6, concurrent=True) == alone


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("width", "height"), [(128, 128), (160, 64), (64, 192)])
def test_any_batch_and_shape(bundle: Bundle, engine: str, width: int, height: int) -> None:
    source = bundle.source()
    assert source.inference.rectangular
    scenes = [
        make_scene(width, height, {(32, 0): 0}),
        make_scene(width, height, {}),
        make_scene(width, height, {(0, 32): 1, (32, 32): 2}),
    ]
    found = open_engine(source, name=engine, threads=1).detect(as_batch(*scenes))
    assert [boxes_of(one) for one in found] == [
        [("red", cell(32, 0))],
        [],
        [("blue", cell(32, 32)), ("green", cell(0, 32))],
    ]
    assert found[0].scores.tolist() == pytest.approx([1], abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [1, 2])
def test_a_static_file_is_given_what_it_takes(tmp_path: Path, engine: str, batch: int) -> None:
    source = import_with(tmp_path, **STATIC | {"batch": batch}).source()
    assert not source.inference.rectangular
    scenes = [make_scene(128, 128, {(32 * place, 64): place}) for place in range(3)]
    opened = open_engine(source, name=engine, threads=1)
    found = opened.detect(as_batch(*scenes))
    assert [boxes_of(one) for one in found] == [[(NAMES[place], cell(32 * place, 64))] for place in range(3)]
    with pytest.raises(ValueError, match="expected 128 x 128"):
        opened.detect(as_batch(make_scene(64, 128, {})))


def test_sides_that_are_no_multiples_are_refused(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        open_engine(bundle.source(), threads=1).detect(np.zeros((1, 64, 70, 3), np.uint8))


def test_no_images_give_nothing(bundle: Bundle) -> None:
    assert open_engine(bundle.source(), threads=1).detect(np.zeros((0, 64, 64, 3), np.uint8)) == []


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_predict_gives_pixels_of_the_original(bundle: Bundle, engine: str, tmp_path: Path) -> None:
    model = sightline.load_model(bundle.path, engine=engine, threads=1, workspace=tmp_path)
    # Made twice as large on the canvas of 128, with 32 pixels of gray above and below.
    scene = np.zeros((32, 64, 3), np.uint8)
    scene[0:16, 32:48] = (0, 255, 0)
    (found,) = model.predict(scene)
    assert found.names == ["green"]
    np.testing.assert_allclose(found.boxes, [[32, 0, 48, 16]], atol=1e-3)
    assert not (tmp_path / "compiled").exists(), "the file itself is what engines run"


def test_auto_takes_the_fastest_that_runs_it(bundle: Bundle) -> None:
    engine = open_engine(bundle.source(), threads=1)
    assert engine.name == "openvino"
    assert resolve_engine(bundle, "auto", "cuda") == (engine.name, "the fastest for an ONNX file that is installed")


def test_torch_does_not_run_it(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is an ONNX file.* take onnxruntime or openvino"):
        sightline.load_model(bundle.path, engine="torch", workspace=tmp_path)


def test_another_size(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.source(size=256).inference.letterbox.canvas(width=100, height=50) == (256, 256)
    with pytest.raises(ConfigError, match="size is 256, and the ONNX file of this model takes 128 only"):
        import_with(tmp_path, **STATIC).source(size=256)


def test_a_higher_minimum_goes_into_the_engine(bundle: Bundle) -> None:
    scene = make_scene(64, 64, {(0, 0): 0})
    scene[32:, 32:] = (0, 0, 160)  # Blue, with a score of 0.25.
    engine = open_engine(bundle.source(), threads=1)
    assert len(engine.detect(as_batch(scene))[0]) == 2
    engine.model.raise_min_score(0.3)
    assert boxes_of(engine.detect(as_batch(scene))[0]) == [("red", cell(0, 0))]
    assert len(open_engine(bundle.source(), threads=1).detect(as_batch(scene))[0]) == 2, "of this engine only"


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_it_is_exported_like_any_model(bundle: Bundle, to: str, tmp_path: Path) -> None:
    directory = sightline.export_model(bundle.path, to=to, output=tmp_path / "out", workspace=tmp_path)
    images = as_batch(make_scene(96, 64, {(64, 32): 1}))
    assert boxes_of(open_exported(bundle.source(), directory, threads=1).detect(images)[0]) == [("green", cell(64, 32))]


def test_it_is_not_trained_nor_made_anew(bundle: Bundle) -> None:
    assert "yolo-onnx" not in FAMILIES
    with pytest.raises(ConfigError, match="'yolo-onnx' is an ONNX file, which `sightline import` makes a bundle of"):
        make_model("yolo-onnx", num_classes=3)
    with pytest.raises(ConfigError, match="cannot be trained"):
        bundle.load()


@pytest.mark.parametrize("file", ["model.onnx", "model.json", "README.md", "manifest.json"])
def test_a_flipped_byte_is_refused_wherever_it_is(tmp_path: Path, file: str) -> None:
    made = import_with(tmp_path)
    data = (made.path / file).read_bytes()
    for place in range(0, len(data), max(1, len(data) // 20)):
        (made.path / file).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedError):
            open_bundle(made.path)


def test_only_some_families_take_any_shape() -> None:
    assert make_model("nano", num_classes=2).inference.rectangular
    others = ("ssdlite", "retinanet", "resnet18")
    assert not any(make_model(name, num_classes=2).inference.rectangular for name in others)
