"""A model scored on a split of a dataset; workers share the images, and their results are merged exactly."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import torch

from sightline.data.dataset import Dataset
from sightline.data.loader import Batch, Loader, LoadOptions
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationMetric, ClassificationResult, ClassRates
from sightline.metrics.columns import Detections
from sightline.metrics.detection import DetectionMetric
from sightline.metrics.result import ClassResult, DetectionResult
from sightline.models.classifier import Classifier
from sightline.models.detector import Detector, Found
from sightline.models.info import ModelInfo, Preprocessing
from sightline.models.letterbox import Letterbox, boxes_to_original
from sightline.models.predictor import Runner, detect_canvases
from sightline.models.preprocessor import Preprocessor, make_preprocessor
from sightline.training.collective import Alone, Collective

Progress = Callable[[int], None]
OnFound = Callable[[int, Detections], None]
"""Told an image's place in the dataset and what was found in it, in pixels of the image as it is stored."""


def make_metric(
    model: Detector, dataset: Dataset, *, iou: float | None = None, score_threshold: float | None = None
) -> DetectionMetric | ClassificationMetric:
    """The metric that fits a model: COCO's, at one overlap if asked, or accuracy.

    Args:
        score_threshold: For precision, recall and F1, chosen on other images; None takes the best on these.
    """
    if isinstance(model, Classifier):
        return ClassificationMetric(dataset.classes)
    if iou is None:
        return DetectionMetric(dataset.classes, score_threshold=score_threshold)
    return DetectionMetric(dataset.classes, iou_thresholds=(iou,), operating_iou=iou, score_threshold=score_threshold)


def check_classes(info: ModelInfo, dataset: Dataset) -> None:
    """Raise unless a model and a dataset have the same classes in the same order."""
    if list(dataset.classes) != list(info.classes):
        raise ConfigError(
            f"the model finds {', '.join(info.classes[:6])}; dataset {dataset.info.name!r} has "
            f"{', '.join(dataset.classes[:6])}: ingest it with --classes in the model's order"
        )


def evaluate(
    model: Detector,
    dataset: Dataset,
    metric: DetectionMetric | ClassificationMetric,
    *,
    loader: LoadOptions,
    collective: Collective | None = None,
    progress: Progress | None = None,
    on_found: OnFound | None = None,
    runner: Runner | None = None,
    preprocessing: Preprocessing | None = None,
) -> DetectionResult | ClassificationResult:
    """Feed a new metric with what the model finds, and compute it over all workers.

    Args:
        preprocessing: What the model's bundle says; None for a model that has none yet.
        runner: An engine of the model; None takes the model's own modules.
        on_found: Told of every image of a detector, in the order of the dataset; each worker is told of its own.
    """
    collective = collective or Alone()
    done = 0
    preprocessor = make_preprocessor(model, preprocessing, max_pixels=loader.max_pixels)
    model.eval()
    for batch, found in _found(runner or model, dataset, loader, collective, preprocessor, device=_device(model)):
        for position, one in zip(batch.positions.tolist(), found, strict=True):
            if isinstance(metric, ClassificationMetric):
                _take_answer(metric, dataset, position, one)
                continue
            boxes = in_original(one, preprocessor.letterbox, dataset, position)
            metric.update(position, dataset.annotation(position), boxes)
            if on_found:
                on_found(position, boxes)
        done += len(batch)
        if progress:
            progress(done)
    others = [state for rank, state in enumerate(collective.gather(metric.state())) if rank != collective.rank]
    metric.merge(others)
    return metric.compute()


def score_model(
    model: Detector,
    dataset: Dataset,
    *,
    loader: LoadOptions,
    iou: float | None = None,
    collective: Collective | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """The figures that choose the best epoch; `score` is mAP50, mAP at the overlap asked for, or accuracy.

    Those of single classes are named `FIGURE/INDEX OF THE CLASS`.
    """
    metric = make_metric(model, dataset, iou=iou)
    found = evaluate(model, dataset, metric, loader=loader, collective=collective, progress=progress)
    by_class = _by_class(found)
    if isinstance(found, ClassificationResult):
        return {"score": found.accuracy, "accuracy": found.accuracy, **by_class}
    scores = {"score": found.map50, "map": found.map, "map50": found.map50, "f1": found.rates.f1}
    if iou is not None:
        scores = {"score": found.map, f"map{round(100 * iou)}": found.map, "f1": found.rates.f1}
    # Where the split has no box, or nothing was found, there is no figure; a run goes on all the same.
    known = {name: 0.0 if math.isnan(value) else value for name, value in scores.items()} | by_class
    return known if math.isnan(found.score) else {**known, "score_threshold": found.score}


def _by_class(found: DetectionResult | ClassificationResult) -> dict[str, float]:
    figures: dict[str, float] = {}
    rows: Sequence[ClassResult | ClassRates] = found.per_class
    for index, row in enumerate(rows):
        values = {"count": float(row.num_true), **asdict(row.rates)}
        if isinstance(row, ClassResult):
            values |= {"ap": row.ap, "ap50": row.ap50}
        figures |= {f"{name}/{index}": value for name, value in values.items() if not math.isnan(value)}
    return figures


def _found(
    runner: Runner,
    dataset: Dataset,
    options: LoadOptions,
    collective: Collective,
    preprocessor: Preprocessor,
    *,
    device: torch.device,
) -> Iterator[tuple[Batch, list[Found]]]:
    loader = Loader(dataset, options, shuffle=False, decode=preprocessor.canvas)
    for batch in loader.batches(epoch=0, rank=collective.rank, world_size=collective.size):
        yield batch, detect_canvases(runner, batch.images, device=device)


def _device(model: Detector) -> torch.device:
    return next(model.parameters()).device


def _take_answer(metric: ClassificationMetric, dataset: Dataset, position: int, found: Found) -> None:
    truth = dataset.annotation(position)
    scores = torch.zeros(len(metric.classes)).index_copy(0, found.labels.cpu(), found.scores.cpu().float())
    assert truth.label is not None, "classifiers are scored on classification datasets"
    metric.update(position, truth.label, scores.numpy())


def in_original(found: Found, letterbox: Letterbox, dataset: Dataset, position: int) -> Detections:
    """Detections in pixels of the image as it is stored."""
    width, height = dataset.size(position)
    boxes = boxes_to_original(found.boxes.cpu().numpy().astype(np.float32), letterbox, width=width, height=height)
    return Detections(boxes, found.scores.cpu().numpy(), found.labels.cpu().numpy())
