"""A loaded model takes images in any form and says which one it could not use."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sightline
from sightline.config import load_config
from sightline.data.decode import decode
from sightline.errors import ConfigError, ImageError
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model
from sightline.models.predictor import Predictor
from sightline.structures import Classification, Detections


@pytest.fixture
def model(bundle: Bundle, tmp_path: Path) -> Predictor:
    torch.set_num_threads(1)
    return sightline.load_model(bundle.path, workspace=tmp_path)


def pixels(width: int = 100, height: int = 60, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(array: np.ndarray, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, format, **options)
    return file.getvalue()


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("boxes", "scores", "labels"))


def test_all_forms_of_an_image_give_the_same(model: Predictor, tmp_path: Path) -> None:
    array = pixels()
    (tmp_path / "image.png").write_bytes(encoded(array))
    forms = [
        array,
        encoded(array),
        memoryview(encoded(array)),
        Image.fromarray(array),
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
    ]
    results = model.predict(forms, threshold=0.0)
    assert len(results) == len(forms)
    first = results[0]
    assert isinstance(first, Detections)
    assert len(first) > 0
    assert all(equal(first, other) for other in results)
    for form in forms:
        (alone,) = model.predict(form, threshold=0.0)
        assert equal(first, alone)


def test_columns(model: Predictor) -> None:
    found, small = model.predict([pixels(200, 50), pixels(30, 30, seed=1)], threshold=0.0)
    assert isinstance(found, Detections)
    assert isinstance(small, Detections)
    assert (found.boxes.dtype, found.scores.dtype, found.labels.dtype) == (np.float32, np.float32, np.int32)
    assert found.boxes.shape == (len(found), 4)
    assert found.names == [model.classes[label] for label in found.labels]
    assert (np.diff(found.scores) <= 0).all()
    assert found.boxes[:, 2].max() <= 200
    assert found.boxes[:, 2].max() > 64  # In pixels of the original, not of the model's input.
    assert small.boxes.max() <= 30
    assert next(found.rows()) == (found.names[0], float(found.scores[0]), *found.boxes[0].tolist())


def test_the_threshold_is_that_of_the_bundle_unless_given(model: Predictor) -> None:
    everything, own, none = (model.predict(pixels(), threshold=value)[0] for value in (0.0, None, 1.0))
    assert isinstance(everything, Detections)
    assert isinstance(own, Detections)
    assert isinstance(none, Detections)
    assert model.bundle.info.score_threshold == 0.25
    assert len(own) == (everything.scores >= 0.25).sum()
    assert len(none) == 0
    assert none.boxes.shape == (0, 4)
    with pytest.raises(ConfigError, match=r"threshold is 1\.5"):
        model.predict(pixels(), threshold=1.5)


def test_more_images_than_a_batch_keep_their_order(model: Predictor) -> None:
    images = [pixels(40 + number, 50, seed=number) for number in range(19)]
    together = model.predict(images, threshold=0.0)
    for image, found in zip(images, together, strict=True):
        (alone,) = model.predict(image, threshold=0.0)
        assert isinstance(alone, Detections)
        assert isinstance(found, Detections)
        np.testing.assert_allclose(alone.boxes, found.boxes, atol=1e-2)
    assert model.predict([]) == []


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(model: Predictor, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(pixels(90, 50), "PNG", exif=exif)
    from_bytes = model.predict(data, threshold=0.0)[0]
    (tmp_path / "turned.png").write_bytes(data)
    with Image.open(tmp_path / "turned.png") as image:
        from_pil = model.predict(image, threshold=0.0)[0]
    assert isinstance(from_bytes, Detections)
    assert equal(from_bytes, from_pil)
    width = 50 if orientation >= 5 else 90
    assert from_bytes.boxes[:, 2].max() <= width
    upright = decode(data)
    assert equal(from_bytes, model.predict(upright, threshold=0.0)[0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", r"empty file: image 1 of 3: 0 bytes"),
        (b"hello", r"image 1 of 3"),
        ("/nowhere/image.jpg", r"file not readable: image 1 of 3, '/nowhere/image\.jpg'"),
        ("http://example.org/image.jpg", r"file not readable: image 1 of 3"),
        ("/dev/zero", r"not a regular file"),
        (np.zeros((4, 4), np.uint8), r"not an image: image 1 of 3: an array of uint8 \(4, 4\); expected"),
        (np.zeros((4, 4, 3), np.float32), r"float32"),
        (np.zeros((0, 4, 3), np.uint8), r"not an image"),
        (None, r"a NoneType; expected a path"),
        (encoded(pixels(300, 300))[:200], r"truncated image: image 1 of 3"),
    ],
)
def test_a_bad_image_is_named(model: Predictor, bad: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        model.predict([pixels(), bad, pixels()])


def test_a_bomb_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    config = load_config(flags={"decode": {"max_pixels": 5000}})
    model = sightline.load_model(bundle.path, config=config, workspace=tmp_path)
    for image in (encoded(pixels(100, 60)), Image.fromarray(pixels(100, 60))):
        with pytest.raises(ImageError, match="too many pixels: image 0 of 1: 100 x 60"):
            model.predict(image)


def test_a_classifier_gives_a_label_and_a_score(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = make_model("resnet18", num_classes=3, size=64)
    info = describe(network, name="resnet18", classes=("a", "b", "c"))
    save_bundle(tmp_path / "classifier", network.state_dict(), info, {})
    model = sightline.load_model(f"{tmp_path}/classifier", workspace=tmp_path)
    (found,) = model.predict(pixels(100, 60))
    assert isinstance(found, Classification)
    assert found.scores.sum() == pytest.approx(1)
    assert (found.name, found.score) == (model.classes[found.label], pytest.approx(found.scores.max()))
    assert list(found.rows()) == [(found.name, found.score, 0.0, 0.0, 100.0, 60.0)]


def test_an_engine_that_is_not_known(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="engine 'warp' is not known"):
        sightline.load_model(bundle.path, engine="warp")


def test_no_threads_are_refused(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="threads is 0: give 1 or more"):
        sightline.load_model(bundle.path, threads=0)
