"""The metric of detectors: takes images one by one, on any number of workers, and gives COCO's figures."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.metrics.average_precision import MAX_FOUND_OF_RECALL, Averages, average, mean_known
from sightline.metrics.columns import Columns, GroundTruth, State, image_columns, join
from sightline.metrics.confusion import confusion_matrix
from sightline.metrics.matching import AREAS, Matched, match_columns
from sightline.metrics.operating_point import OperatingPoint, operating_point
from sightline.metrics.overlap import Floats
from sightline.metrics.result import ClassResult, DetectionResult
from sightline.structures import Detections

COCO_IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""0.50, 0.55 … 0.95."""


class DetectionMetric:
    """COCO's evaluation of boxes, equal to pycocotools, for images that come in any order and on any worker.

    Workers that share the images each update a metric of their own; one that merges their states computes exactly
    what a single worker with all images would have.

    Args:
        classes: Names of the classes, which labels are indices into.
        iou_thresholds: What `map` is the mean over; DeepPCB's benchmark uses (0.33,).
        operating_iou: Overlap from which a found box is right, for precision, recall, F1 and confusion.
        score_threshold: Score from which found boxes are kept, for the same figures; None takes the one with the best
            F1. Choose it on images other than those that are scored, and give it here for those.

    Raises:
        ValueError: No class, no threshold, or an overlap that is not in (0, 1].

    Example:
        >>> from sightline.structures import Annotation, Detections
        >>> box, label = np.array([[0, 0, 10, 10]], np.float32), np.array([0], np.int32)
        >>> metric = DetectionMetric(["cat"])
        >>> metric.update(0, Annotation(box, label, np.array([False])), Detections(box, np.array([0.9]), label))
        >>> round(metric.compute().map50, 6)
        1.0
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        iou_thresholds: Sequence[float] = COCO_IOU_THRESHOLDS,
        operating_iou: float = 0.5,
        score_threshold: float | None = None,
    ) -> None:
        if not len(classes) or not len(iou_thresholds):
            raise ValueError(f"{len(classes)} classes and {len(iou_thresholds)} IoU thresholds; expected some of each")
        if wrong := [iou for iou in (*iou_thresholds, operating_iou) if not 0 < iou <= 1]:
            raise ValueError(f"an IoU threshold of {wrong[0]}; expected more than 0 and at most 1")
        self.classes = tuple(classes)
        self.iou_thresholds = tuple(sorted({float(iou) for iou in iou_thresholds}))
        self.operating_iou = operating_iou
        self.score_threshold = score_threshold
        self._parts: list[Columns] = []

    def update(self, image_key: int, ground_truth: GroundTruth, detections: Detections) -> None:
        """Take one image.

        Args:
            image_key: The image's place in the whole dataset; each may come once. It decides the order of boxes of
                equal score, as the image's id does in COCO.
            ground_truth: What is in the image.
            detections: What was found in it; in any order, of equal scores the first is the better.

        Raises:
            ValueError: Columns differ in length, or a label is not one of the classes.
        """
        self._parts.append(image_columns(image_key, ground_truth, detections, num_classes=len(self.classes)))

    def state(self) -> State:
        """Everything seen so far, as arrays that can be sent to another worker."""
        return self._joined().to_state()

    def merge(self, states: Iterable[State]) -> None:
        """Take what other metrics have seen.

        Example:
            >>> total = DetectionMetric(["cat"])
            >>> total.merge([DetectionMetric(["cat"]).state(), DetectionMetric(["cat"]).state()])
            >>> total.compute().num_images
            0
        """
        self._parts.extend(Columns(**state) for state in states)

    def compute(self) -> DetectionResult:
        """The figures of all images seen.

        Raises:
            ValueError: An image was given more than once.
        """
        columns = self._joined()
        ious = np.unique([*self.iou_thresholds, 0.5, 0.75, self.operating_iou])
        matched = match_columns(columns, num_classes=len(self.classes), thresholds=ious)
        averages = average(matched)
        operating = int(np.searchsorted(ious, self.operating_iou))
        point = operating_point(matched, threshold=operating, score=self.score_threshold)
        return DetectionResult(
            iou_thresholds=self.iou_thresholds,
            **_mean_figures(averages, ious, np.searchsorted(ious, self.iou_thresholds)),
            iou=point.iou,
            score=point.score,
            rates=point.overall,
            per_class=self._per_class(matched, averages, point),
            confusion=confusion_matrix(matched, threshold=operating, score=point.score),
            num_images=len(columns.keys),
        )

    def _joined(self) -> Columns:
        """All images in one part, which takes the place of the many."""
        self._parts = [join(self._parts)]
        return self._parts[0]

    def _per_class(self, matched: Matched, averages: Averages, point: OperatingPoint) -> tuple[ClassResult, ...]:
        chosen = np.searchsorted(matched.thresholds, self.iou_thresholds)
        ap, small, medium, large = averages.precision[:, chosen].mean(axis=1).tolist()
        ap50 = averages.precision[0, np.searchsorted(matched.thresholds, 0.5)].tolist()
        columns = (self.classes, ap, ap50, small, medium, large, matched.num_true().tolist(), point.per_class)
        return tuple(ClassResult(*row) for row in zip(*columns, strict=True))


def _mean_figures(averages: Averages, ious: Floats, chosen: NDArray[Any]) -> dict[str, float]:
    """COCO's twelve figures, by the names they have in the result."""
    precision, recall = averages.precision, averages.recall
    sizes = [(area, name) for area, name in enumerate(AREAS) if name != "all"]
    return {
        "map": mean_known(precision[0, chosen]),
        "map50": mean_known(precision[0, np.searchsorted(ious, 0.5)]),
        "map75": mean_known(precision[0, np.searchsorted(ious, 0.75)]),
        **{f"map_{name}": mean_known(precision[area, chosen]) for area, name in sizes},
        **{f"ar{most}": mean_known(recall[0, chosen, m]) for m, most in enumerate(MAX_FOUND_OF_RECALL)},
        **{f"ar_{name}": mean_known(recall[area, chosen, -1]) for area, name in sizes},
    }
