"""Models scored on the same images, side by side."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from sightline.data.dataset import Dataset
from sightline.data.loader import LoadOptions
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationResult
from sightline.metrics.result import DetectionResult
from sightline.models.bundle import Bundle
from sightline.models.detector import Detector
from sightline.models.predictor import lowest_score
from sightline.models.preprocessor import make_preprocessor
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
    model = bundle.load().to(pick_device("auto"))
    metric = make_metric(model, images, score_threshold=lowest_score(bundle.info, None))
    _warm_up(model, loader.batch)
    started = time.perf_counter()
    said = bundle.info.preprocessing
    found = evaluate(model, images, metric, loader=loader, progress=progress, preprocessing=said)
    speed = len(images) / max(time.perf_counter() - started, 1e-9)
    main, figures, per_class = _classifier(found) if isinstance(found, ClassificationResult) else _detector(found)
    known = {name: None if math.isnan(value) else value for name, value in figures.items()}
    classes = {name: None if math.isnan(value) else value for name, value in per_class.items()}
    return Scored(label, bundle.hash, bundle.info.model, main, {**known, "images_per_s": speed}, classes)


def _warm_up(model: Detector, batch: int) -> None:
    """Let a network take its memory and choose its ways before it is timed."""
    width, height = make_preprocessor(model).letterbox.canvas(width=model.size, height=model.size)
    with torch.inference_mode():
        model.detect(torch.zeros(batch, 3, height, width, dtype=torch.uint8, device=next(model.parameters()).device))


def _detector(found: DetectionResult) -> tuple[str, dict[str, float], dict[str, float]]:
    figures = {"map": found.map, "map50": found.map50, "map75": found.map75, **asdict(found.rates)}
    return "map", figures, {row.name: row.ap for row in found.per_class}


def _classifier(found: ClassificationResult) -> tuple[str, dict[str, float], dict[str, float]]:
    figures = {"accuracy": found.accuracy, "top5": found.top5, "macro_f1": found.macro_f1}
    return "accuracy", figures, {row.name: row.rates.f1 for row in found.per_class}
