"""Models scored on the same images, side by side."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sightline.config import DetectConfig
from sightline.data.dataset import Dataset
from sightline.data.decode import MAX_PIXELS
from sightline.data.loader import LoadOptions
from sightline.engines.opening import open_predictor
from sightline.engines.settings import resolve_inference
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationResult
from sightline.metrics.result import DetectionResult
from sightline.models.bundle import Bundle
from sightline.models.factory import YOLO_ONNX
from sightline.models.predictor import Predictor, predictor_of
from sightline.training.evaluate import check_classes, evaluate, make_metric
from sightline.training.precision import pick_device

Figure = float | None
"""None where there was nothing to count."""


@dataclass(frozen=True)
class Scored:
    """A model's figures on a split of a dataset.

    Attributes:
        label: How the user named the model.
        bundle: Its hash.
        main: Name of the figure by which models are compared: map or accuracy.
        figures: mAP, mAP50, precision, recall and F1 at the model's own threshold, or accuracy; and images/s of the
            evaluation, reading included.
        per_class: AP of each class, or its F1 where whole images are classified.
    """

    label: str
    bundle: str
    model: str
    main: str
    figures: dict[str, Figure]
    per_class: dict[str, Figure]

    @property
    def score(self) -> Figure:
        """The figure by which models are compared."""
        return self.figures[self.main]


@dataclass(frozen=True)
class ModelComparison:
    """Models side by side, in the order asked for."""

    dataset: str
    split: str
    num_images: int
    models: tuple[Scored, ...]


def compare_bundles(
    bundles: Sequence[tuple[str, Bundle]],
    dataset: Dataset,
    *,
    split: str,
    loader: LoadOptions,
    progress: Callable[[int], None] | None = None,
) -> ModelComparison:
    """Score some models on the same images.

    Args:
        bundles: With the name that each is shown by.
    """
    tasks = {bundle.info.task for _, bundle in bundles}
    if len(tasks) > 1:
        raise ConfigError(f"models for {' and '.join(sorted(tasks))} have no figures in common")
    for _, bundle in bundles:
        check_classes(bundle.info, dataset)
    chosen = dataset.select(split)
    scored = [score_bundle(label, bundle, chosen, loader=loader, progress=progress) for label, bundle in bundles]
    return ModelComparison(dataset.info.name, split, len(chosen), tuple(scored))


def score_bundle(
    label: str, bundle: Bundle, images: Dataset, *, loader: LoadOptions, progress: Callable[[int], None] | None = None
) -> Scored:
    """Score one model; F1 at the threshold that `detect` would use."""
    predictor = reference_predictor(bundle, max_pixels=loader.max_pixels)
    metric = make_metric(predictor.task, images, score_threshold=predictor.resolve_threshold(None))
    _warm_up(predictor, loader.batch)
    started = time.perf_counter()
    found = evaluate(predictor, images, metric, loader=loader, progress=progress)
    speed = len(images) / max(time.perf_counter() - started, 1e-9)
    main, figures, per_class = _classifier(found) if isinstance(found, ClassificationResult) else _detector(found)
    known = {name: None if math.isnan(value) else value for name, value in figures.items()}
    classes = {name: None if math.isnan(value) else value for name, value in per_class.items()}
    return Scored(label, bundle.hash, bundle.info.model, main, {**known, "images_per_s": speed}, classes)


def reference_predictor(bundle: Bundle, *, size: int | None = None, max_pixels: int = MAX_PIXELS) -> Predictor:
    """A model run by its own modules in torch, by which engines are measured; one in ONNX by the fastest engine."""
    if bundle.info.model == YOLO_ONNX:
        config = DetectConfig(size=size)
        return open_predictor(bundle, resolve_inference(bundle, config, device="cpu", max_pixels=max_pixels))
    model = bundle.load(size=size).to(pick_device("auto"))
    said = bundle.info.preprocessing
    return predictor_of(model, bundle.info.classes, preprocessing=said, bundle=bundle, max_pixels=max_pixels)


def _warm_up(predictor: Predictor, batch: int) -> None:
    """Warm up the allocator and kernel selection before timing."""
    side = predictor.preprocessor.letterbox.size
    predictor.detect([predictor.prepare(np.zeros((side, side, 3), np.uint8))] * batch, 0.0)


def _detector(found: DetectionResult) -> tuple[str, dict[str, float], dict[str, float]]:
    figures = {"map": found.map, "map50": found.map50, "map75": found.map75, **asdict(found.rates)}
    return "map", figures, {row.name: row.ap for row in found.per_class}


def _classifier(found: ClassificationResult) -> tuple[str, dict[str, float], dict[str, float]]:
    figures = {"accuracy": found.accuracy, "top5": found.top5, "macro_f1": found.macro_f1}
    return "accuracy", figures, {row.name: row.rates.f1 for row in found.per_class}
