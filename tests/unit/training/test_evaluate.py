"""Figures are of the canvases that production sees."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import sightline
from sightline.config import load_config
from sightline.data.dataset import Dataset
from sightline.data.loader import LoadOptions
from sightline.engines.calibration import calibration_images
from sightline.models.detector import Detector
from sightline.models.factory import make_model
from sightline.models.predictor import predictor_of
from sightline.models.preprocessor import preprocessing_of
from sightline.structures import Detections
from sightline.training.evaluate import evaluate, make_metric, score_model

SIZES = [(64, 64), (200, 100), (100, 200), (640, 160), (90, 70), (200, 100)]
SMALLEST = [(64, 64), (32, 64), (64, 32), (32, 64), (64, 64), (32, 64)]
"""Height and width of their canvases at a size of 64."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    place = tmp_path_factory.mktemp("photos")
    images, boxes = [], []
    for number, (width, height) in enumerate(SIZES, 1):
        pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.jpg")
        images.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [2, 2, 30, 30], "area": 900})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (place / "annotations.json").write_text(json.dumps(content))
    config = load_config(flags={"ingest": {"default_split": "train=1", "workers": 1}})
    sightline.ingest(place, "photos", workspace=place / "ws", config=config)
    return sightline.open_dataset("photos", workspace=place / "ws").select("train")


class Recorder:
    """Finds nothing, and keeps the sizes of what it was shown."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []

    def detect(self, canvases: NDArray[np.uint8]) -> list[Detections]:
        self.sizes += [canvases.shape[1:3]] * len(canvases)
        nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))
        return [nothing] * len(canvases)


def shown(model: Detector, dataset: Dataset, **given: bool) -> list[tuple[int, ...]]:
    recorder, said = Recorder(), preprocessing_of(model.inference).model_copy(update=given) if given else None
    predictor = replace(predictor_of(model, dataset.classes, preprocessing=said), runner=recorder)
    evaluate(predictor, dataset, make_metric(model.task, dataset), loader=LoadOptions(1))
    return recorder.sizes


@pytest.mark.parametrize(("name", "sizes"), [("nano", SMALLEST), ("ssdlite", [(64, 64)] * len(SIZES))])
def test_canvases_are_those_that_the_model_is_used_on(
    name: str, sizes: list[tuple[int, ...]], dataset: Dataset
) -> None:
    model = make_model(name, num_classes=1, size=64)
    assert shown(model, dataset) == sizes
    calibrated = calibration_images(model.inference, dataset, LoadOptions())
    assert [image.shape[:2] for image in calibrated] == sizes


def test_a_bundle_may_ask_for_squares(dataset: Dataset) -> None:
    assert shown(make_model("nano", num_classes=1, size=64), dataset, square=True) == [(64, 64)] * len(SIZES)


@pytest.mark.parametrize("batch", [1, 4])
def test_batches_of_many_sizes_score_alike(batch: int, dataset: Dataset) -> None:
    torch.manual_seed(0)
    model = make_model("nano", num_classes=1, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)  # Or else it would be sure of nothing.
    alone = score_model(model, dataset, loader=LoadOptions(1))
    together = score_model(model, dataset, loader=LoadOptions(batch))
    assert together == pytest.approx(alone, abs=1e-6)
