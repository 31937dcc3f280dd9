"""Every engine finds what torch finds; every family was taught 16 boards, so that there is something to find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agreement import agreement
from numpy.typing import NDArray
from overfitted import dataset_of, learn

import sightline
from families import trained_families
from sightline.data.dataset import Dataset
from sightline.data.loader import LoadOptions
from sightline.engines.calibration import calibration_images
from sightline.engines.engine import SCORE_TOLERANCE, Engine
from sightline.engines.exported import open_exported
from sightline.engines.factory import open_engine
from sightline.errors import ConfigError, ExistsError
from sightline.metrics.detection import DetectionMetric
from sightline.models.bundle import open_bundle
from sightline.models.detector import Detector
from sightline.models.letterbox import boxes_to_original
from sightline.models.preprocessor import make_preprocessor
from sightline.structures import Detections

ENGINES = ("torch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Taught:
    """A model that knows its images by heart, and what torch finds in them."""

    run: str
    model: Detector
    dataset: Dataset
    images: NDArray[np.uint8]
    found: list[Detections]

    def score(self, found: Sequence[Detections]) -> float:
        """mAP, in pixels of the images as they are stored."""
        metric = DetectionMetric(self.dataset.classes)
        letterbox = make_preprocessor(self.model.inference).letterbox
        for position, one in enumerate(found):
            width, height = self.dataset.size(position)
            boxes = boxes_to_original(one.boxes, letterbox, width=width, height=height)
            metric.update(position, self.dataset.annotation(position), replace(one, boxes=boxes))
        return metric.compute().map

    @property
    def limits(self) -> dict[str, Any]:
        """Below which score and after how many detections the model stops."""
        around: Any = self.model.inference
        if not around.uses_torch:
            return {"threshold": around.min_score, "limit": around.max_detections}
        inner: Any = self.model.model
        part = getattr(inner, "roi_heads", inner)
        return {"threshold": part.score_thresh, "limit": part.detections_per_img}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def teach(overfitted: Path) -> Any:
    """Each family once a session."""
    taught: dict[str, Taught] = {}

    def teach(family: str) -> Taught:
        if family not in taught:
            run = learn(family, overfitted)
            model = open_bundle(overfitted / "runs" / run / "model").load()
            dataset = sightline.open_dataset(dataset_of(family), workspace=overfitted).select("train")
            images = np.stack(calibration_images(model.inference, dataset, LoadOptions()))
            taught[family] = Taught(run, model, dataset, images, model.detect(images))
        return taught[family]

    return teach


def opened(known: Taught, name: str, overfitted: Path) -> Engine:
    return open_engine(known.model.source(known.run), name=name, threads=1, cache=overfitted / "compiled")


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("family", trained_families(classify=False))
def test_detections_are_those_of_torch(family: str, name: str, teach: Any, overfitted: Path) -> None:
    known = teach(family)
    engine = opened(known, name, overfitted)
    found = [one for start in range(0, len(known.images), 3) for one in engine.detect(known.images[start : start + 3])]
    agreed = agreement(found, known.found, **known.limits)
    assert agreed.compared >= 2 * 50  # Each is asked for its partner in the other set.
    assert agreed.share >= 0.99
    assert known.score(known.found) >= 0.5
    assert known.score(found) == pytest.approx(known.score(known.found), abs=0.002)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("family", trained_families(classify=True))
def test_classes_are_those_of_torch(family: str, name: str, teach: Any, overfitted: Path) -> None:
    known = teach(family)
    found = opened(known, name, overfitted).detect(known.images)
    for one, other in zip(found, known.found, strict=True):
        assert one.labels[0] == other.labels[0]
        scores = [each.scores[each.labels.argsort()] for each in (one, other)]
        assert np.abs(scores[0] - scores[1]).max() <= SCORE_TOLERANCE


@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("family", trained_families(classify=False))
def test_integers_score_like_floats(family: str, to: Any, teach: Any, overfitted: Path, tmp_path: Path) -> None:
    known = teach(family)
    directory = sightline.export_model(
        known.run, to=to, output=tmp_path / "int8", int8=True, calibrate="boards", workspace=overfitted
    )
    found = open_exported(known.model.source(), directory, threads=1).detect(known.images)
    assert known.score(found) >= known.score(known.found) - 0.02  # By chance it may be higher.
    whole = sum(weight.numel() * 4 for weight in known.model.parameters())
    suffix = {"onnx": ".onnx", "openvino": ".bin"}[to]
    assert 0 < sum(file.stat().st_size for file in directory.iterdir() if file.suffix == suffix) < 0.6 * whole


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_exported_files_say_what_they_are(to: Any, teach: Any, overfitted: Path, tmp_path: Path) -> None:
    import json

    known = teach("nano")
    directory = sightline.export_model(known.run, to=to, output=tmp_path / "files", workspace=overfitted)
    said = json.loads((directory / "engine.json").read_text())
    assert said["classes"] == list(known.dataset.classes)
    assert said["preprocessing"]["letterbox"]["size"] == 160
    assert (said["preprocessing"]["letterbox"]["square"], said["preprocessing"]["reduced_decode"]) == (False, True)
    assert all((directory / graph["file"]).is_file() for graph in said["graphs"].values())
    found = open_exported(known.model.source(), directory, threads=1).detect(known.images)
    assert agreement(found, known.found, **known.limits).share >= 0.99
    with pytest.raises(ExistsError, match="there already"):
        sightline.export_model(known.run, to=to, output=directory, workspace=overfitted)


def test_integers_need_images(teach: Any, overfitted: Path) -> None:
    with pytest.raises(ConfigError, match="--calibrate"):
        sightline.export_model(teach("nano").run, to="onnx", int8=True, workspace=overfitted)
    with pytest.raises(ConfigError, match="--int8"):
        sightline.export_model(teach("nano").run, to="onnx", calibrate="boards", workspace=overfitted)
