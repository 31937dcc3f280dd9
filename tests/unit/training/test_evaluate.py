"""Figures are of the canvases that production sees."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import sightline
from sightline.config import load_config
from sightline.data.dataset import Dataset
from sightline.data.loader import LoadOptions
from sightline.engines.calibration import calibration_images
from sightline.models.detector import Detector, Found
from sightline.models.factory import make_model
from sightline.models.preprocessor import preprocessing_of
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

    def detect(self, images: Tensor) -> list[Found]:
        self.sizes += [tuple(images.shape[2:])] * len(images)
        nothing = Found(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
        return [nothing] * len(images)


def shown(model: Detector, dataset: Dataset, **given: bool) -> list[tuple[int, ...]]:
    recorder, said = Recorder(), preprocessing_of(model).model_copy(update=given) if given else None
    metric = make_metric(model, dataset)
    evaluate(model, dataset, metric, loader=LoadOptions(1), runner=recorder, preprocessing=said)
    return recorder.sizes


@pytest.mark.parametrize(("name", "sizes"), [("nano", SMALLEST), ("ssdlite", [(64, 64)] * len(SIZES))])
def test_canvases_are_those_that_the_model_is_used_on(
    name: str, sizes: list[tuple[int, ...]], dataset: Dataset
) -> None:
    model = make_model(name, num_classes=1, size=64)
    assert shown(model, dataset) == sizes
    calibrated = calibration_images(model, dataset, LoadOptions())
    assert [tuple(image.shape[2:]) for image in calibrated] == sizes


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
