"""What a detection metric remembers: the boxes of all images in flat columns, and how parts of workers become one.

Nothing is counted or matched here. Joined columns are in the order of the images' keys whatever order the parts came
in, so all that is computed from them is the same, to the last bit, for every division of the images among workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.metrics.ragged import ranges
from sightline.structures import Detections, box_areas

State = dict[str, NDArray[Any]]
"""Plain arrays by name: what one worker sends to another."""


class GroundTruth(Protocol):
    """What is in one image; `sightline.structures.Annotation` is one.

    It may have `areas`, COCO's `area` of each box; without, or where that is None, they are the areas of the boxes.
    """

    @property
    def boxes(self) -> ArrayLike:
        """N x 4, xyxy."""

    @property
    def labels(self) -> ArrayLike:
        """N indices into the classes."""

    @property
    def ignore(self) -> ArrayLike:
        """N bool, treated as COCO treats `iscrowd`."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of true boxes and rows of found boxes, those of one image together, images in the order of `keys`.

    Attributes:
        keys: int64, one for each image: its place in the dataset.
        num_true: int64, how many rows of the true columns belong to each image.
        num_found: int64, how many rows of the found columns belong to each image.
        true_boxes: G x 4 float32 or float64, xyxy.
        true_labels: G int32.
        ignore: G bool.
        true_areas: G float64, by which true boxes are small, medium or large.
        boxes: N x 4 float32 or float64, xyxy.
        scores: N float32 or float64.
        labels: N int32.
    """

    keys: NDArray[np.int64]
    num_true: NDArray[np.int64]
    num_found: NDArray[np.int64]
    true_boxes: NDArray[Any]
    true_labels: NDArray[np.int32]
    ignore: NDArray[np.bool_]
    true_areas: NDArray[np.float64]
    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[np.int32]

    def to_state(self) -> State:
        """The columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def true_images(self) -> NDArray[np.int64]:
        """For each true box, the position of its image."""
        return np.repeat(np.arange(len(self.keys)), self.num_true)

    def found_images(self) -> NDArray[np.int64]:
        """For each found box, the position of its image."""
        return np.repeat(np.arange(len(self.keys)), self.num_found)


def image_columns(image_key: int, true: GroundTruth, found: Detections, *, num_classes: int) -> Columns:
    """The columns of one image.

    Raises:
        ValueError: Columns differ in length, or a label is not one of the classes.
    """
    true_labels = _labels(true.labels, num_classes, image_key)
    labels = _labels(found.labels, num_classes, image_key)
    true_boxes = _floats(true.boxes, (len(true_labels), 4), image_key)
    given = getattr(true, "areas", None)
    areas = box_areas(true_boxes) if given is None else np.asarray(given).astype(np.float64)
    return Columns(
        keys=np.array([image_key], np.int64),
        num_true=np.array([len(true_labels)], np.int64),
        num_found=np.array([len(labels)], np.int64),
        true_boxes=true_boxes,
        true_labels=true_labels,
        ignore=_shaped(np.asarray(true.ignore).astype(np.bool_), (len(true_labels),), image_key),
        true_areas=_shaped(areas, (len(true_labels),), image_key),
        boxes=_floats(found.boxes, (len(labels), 4), image_key),
        scores=_floats(found.scores, (len(labels),), image_key),
        labels=labels,
    )


def no_columns() -> Columns:
    """The columns of a worker that saw no image."""
    none, counts, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int32)
    areas, flags = np.zeros(0, np.float64), np.zeros(0, np.bool_)
    return Columns(counts, counts, counts, none, labels, flags, areas, none, none[:, 0], labels)


def join(parts: Iterable[Columns]) -> Columns:
    """All images of all parts, in the order of their keys.

    Raises:
        ValueError: The same key occurs twice: an image would be counted twice.
    """
    states = [part.to_state() for part in (no_columns(), *parts)]
    together = Columns(**{name: np.concatenate([state[name] for state in states]) for name in states[0]})
    order = np.argsort(together.keys, kind="stable")
    refuse_repeated(together.keys[order])
    return together if np.array_equal(order, np.arange(len(order))) else _rearrange(together, order)


def refuse_repeated(keys: NDArray[np.int64]) -> None:
    """Raise if an image was given twice; `keys` must ascend."""
    again = keys[1:][keys[1:] == keys[:-1]]
    if again.size:
        raise ValueError(
            f"image {again[0]} was given {1 + np.count_nonzero(again == again[0])} times; expected once: "
            "each image belongs to one worker, and a worker's own state is merged once"
        )


def _rearrange(columns: Columns, order: NDArray[np.int64]) -> Columns:
    true, found = _rows(columns.num_true, order), _rows(columns.num_found, order)
    return Columns(
        keys=columns.keys[order],
        num_true=columns.num_true[order],
        num_found=columns.num_found[order],
        true_boxes=columns.true_boxes[true],
        true_labels=columns.true_labels[true],
        ignore=columns.ignore[true],
        true_areas=columns.true_areas[true],
        boxes=columns.boxes[found],
        scores=columns.scores[found],
        labels=columns.labels[found],
    )


def _rows(counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of images that have `counts` rows each, after the images are put in another order."""
    return ranges((np.cumsum(counts) - counts)[order], counts[order])


def _labels(values: ArrayLike, num_classes: int, image_key: int) -> NDArray[np.int32]:
    labels = np.asarray(values).astype(np.int32).reshape(-1)
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)][0]
        raise ValueError(f"label {wrong} in image {image_key}; expected 0 to {num_classes - 1}")
    return labels


def _floats(values: ArrayLike, shape: tuple[int, ...], image_key: int) -> NDArray[Any]:
    # float32 is kept because it halves what workers send; it becomes float64, exactly, before anything is computed.
    given = np.asarray(values)
    array = given.astype(np.float32 if given.dtype in (np.float32, np.float16) else np.float64)
    return _shaped(array.reshape(shape) if array.size == 0 == shape[0] else array, shape, image_key)


def _shaped(array: NDArray[Any], shape: tuple[int, ...], image_key: int) -> NDArray[Any]:
    if array.shape != shape:
        raise ValueError(f"a column of image {image_key} has shape {array.shape}; expected {shape}, one row a label")
    return array
