"""A model scored on a split of a dataset; workers share the images, and their results are merged exactly."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Literal

from sightline.data.dataset import Dataset
from sightline.data.loader import Loader, LoadOptions
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationMetric, ClassificationResult, ClassRates
from sightline.metrics.detection import DetectionMetric
from sightline.metrics.result import ClassResult, DetectionResult
from sightline.models.detector import Detector
from sightline.models.info import ModelInfo
from sightline.models.predictor import Predictor, predictor_of
from sightline.models.preprocessor import PreparedImage
from sightline.structures import Detections
from sightline.training.collective import Collective, SingleProcess

Progress = Callable[[int], None]
OnDetections = Callable[[int, Detections], None]
"""Called with an image's place in the dataset and its detections, in pixels of the image as it is stored."""


def make_metric(
    task: Literal["detection", "classification"],
    dataset: Dataset,
    *,
    iou: float | None = None,
    score_threshold: float | None = None,
) -> DetectionMetric | ClassificationMetric:
    """The metric that fits a task: COCO's, at one overlap if asked, or accuracy.

    Args:
        score_threshold: For precision, recall and F1, chosen on other images; None takes the best on these.
    """
    if task == "classification":
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
    predictor: Predictor,
    dataset: Dataset,
    metric: DetectionMetric | ClassificationMetric,
    *,
    loader: LoadOptions,
    collective: Collective | None = None,
    progress: Progress | None = None,
    on_detections: OnDetections | None = None,
) -> DetectionResult | ClassificationResult:
    """Feed a new metric with the results of a model, and compute it over all workers.

    Args:
        on_detections: Called with the detections in every image, in the order of the dataset; each worker's are its
            own.
    """
    collective = collective or SingleProcess()
    done = 0
    batches = Loader(dataset, loader, shuffle=False, decode=predictor.preprocessor.canvas).batches(
        epoch=0, rank=collective.rank, world_size=collective.size
    )
    for batch in batches:
        positions = batch.positions.tolist()
        images = [
            PreparedImage(canvas, *dataset.size(position))
            for position, canvas in zip(positions, batch.images, strict=True)
        ]
        if isinstance(metric, ClassificationMetric):
            for position, result in zip(positions, predictor.classify(images), strict=True):
                label = dataset.annotation(position).label
                assert label is not None, "classifiers are scored on classification datasets"
                metric.update(position, label, result.scores)
        else:
            for position, detections in zip(positions, predictor.detect(images, 0.0), strict=True):
                metric.update(position, dataset.annotation(position), detections)
                if on_detections:
                    on_detections(position, detections)
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
    metric = make_metric(model.task, dataset, iou=iou)
    predictor = predictor_of(model, dataset.classes, max_pixels=loader.max_pixels)
    found = evaluate(predictor, dataset, metric, loader=loader, collective=collective, progress=progress)
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
