"""Images with true and found boxes: random ones of many kinds, and ones drawn by hypothesis."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from sightline.metrics.detection import DetectionMetric
from sightline.structures import Annotation, Detections

Scene = list[tuple[Annotation, Detections]]


def truth(boxes: Any, labels: Any, ignore: Any = None) -> Annotation:
    labels = np.array(labels, np.int32)
    flags = np.zeros(len(labels), np.bool_) if ignore is None else np.array(ignore, np.bool_)
    return Annotation(np.array(boxes, np.float64).reshape(-1, 4), labels, flags)


def found(boxes: Any, labels: Any, scores: Any) -> Detections:
    return Detections(
        np.array(boxes, np.float64).reshape(-1, 4), np.array(scores, np.float64), np.array(labels, np.int32)
    )


def metric_of(scene: Scene, num_classes: int, **options: Any) -> DetectionMetric:
    metric = DetectionMetric([f"class {label}" for label in range(num_classes)], **options)
    for key, (true, boxes) in enumerate(scene):
        metric.update(key, true, boxes)
    return metric


def random_scene(
    seed: int,
    *,
    images: int = 12,
    classes: int = 3,
    max_true: int = 8,
    max_found: int = 20,
    crowd: float = 0.1,
    scores: int = 0,
    grid: float = 0.0,
    size: tuple[float, float] = (4.0, 200.0),
    dtype: Any = np.float64,
) -> Scene:
    """Images of which about one in eight has nothing true and one in eight nothing found.

    Args:
        scores: How many different scores there are; 0 for no limit.
        grid: Coordinates are multiples of this; 0 for any.
    """
    rng = np.random.default_rng(seed)
    return [
        _random_image(
            rng,
            int(rng.integers(1, max_true + 1) * (rng.random() > 0.125)),
            int(rng.integers(1, max_found + 1) * (rng.random() > 0.125)),
            classes=classes, crowd=crowd, scores=scores, grid=grid, size=size, dtype=dtype,
        )
        for _ in range(images)
    ]  # fmt: skip


def _random_image(
    rng: np.random.Generator, num_true: int, num_found: int, *, classes: int, crowd: float, scores: int, grid: float,
    size: tuple[float, float], dtype: Any,
) -> tuple[Annotation, Detections]:  # fmt: skip
    true, labels = _random_boxes(rng, num_true, size), rng.integers(0, classes, num_true)
    boxes, found_labels = _random_boxes(rng, num_found, size), rng.integers(0, classes, num_found)
    if num_true:
        near, close = rng.integers(0, num_true, num_found), rng.random(num_found) < 0.7
        width = true[near, 2:] - true[near, :2]
        moved = true[near] + rng.normal(0, rng.choice([0.0, 0.05, 0.15]), (num_found, 4)) * np.tile(width, 2)
        boxes[close] = np.sort(moved.reshape(-1, 2, 2), axis=1).reshape(-1, 4)[close]
        found_labels = np.where(close & (rng.random(num_found) < 0.8), labels[near], found_labels)
    values = rng.random(num_found)
    values = np.floor(values * scores) / scores if scores else values
    true, boxes = (np.round(b / grid) * grid if grid else b for b in (true, boxes))
    annotation = Annotation(true.astype(dtype), labels.astype(np.int32), rng.random(num_true) < crowd)
    return annotation, Detections(boxes.astype(dtype), values.astype(dtype), found_labels.astype(np.int32))


def _random_boxes(rng: np.random.Generator, number: int, size: tuple[float, float]) -> NDArray[np.float64]:
    extent = np.exp(rng.uniform(*np.log(size), (number, 2)))
    corner = rng.random((number, 2)) * 300
    return np.concatenate([corner, corner + extent], axis=1)


_corner = st.integers(0, 4).map(lambda place: place * 16.0)
_side = st.sampled_from([0.0, 16.0, 32.0, 48.0, 96.0, 112.0])  # 32 and 96 are the borders of the area ranges.
_box = st.tuples(_corner, _corner, _side, _side).map(lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]])
_true = st.lists(st.tuples(_box, st.integers(0, 1), st.booleans()), max_size=5)
_found = st.lists(st.tuples(_box, st.integers(0, 1), st.sampled_from([0.25, 0.5, 0.75])), max_size=7)


def _image(true: list[Any], boxes: list[Any]) -> tuple[Annotation, Detections]:
    return (
        truth([row[0] for row in true], [row[1] for row in true], [row[2] for row in true]),
        found([row[0] for row in boxes], [row[1] for row in boxes], [row[2] for row in boxes]),
    )


drawn_scenes = st.lists(st.builds(_image, _true, _found), min_size=0, max_size=4)
"""Up to four images of two classes on a coarse grid, with many equal boxes, overlaps and scores."""
