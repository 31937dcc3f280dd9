"""The values that travel between the parts: annotated images, encoded and decoded, and detections."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float32]
"""N x 4, xyxy in pixels of the upright image; x0 <= x < x1."""

Pixels = NDArray[np.uint8]
"""H x W x 3, RGB."""

Row = tuple[str, float, float, float, float, float]
"""Class name, score, and the box as xyxy."""


def empty_boxes() -> Boxes:
    """No boxes, in the right shape."""
    return np.zeros((0, 4), np.float32)


def box_areas(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """Areas of N x 4 xyxy boxes in square pixels."""
    left, top, right, bottom = boxes.T.astype(np.float64)
    areas: NDArray[np.float64] = (right - left) * (bottom - top)
    return areas


@dataclass(frozen=True, slots=True)
class Annotation:
    """What is known of one image, columns of equal length.

    Attributes:
        boxes: N x 4 float32, xyxy in pixels of the upright image.
        labels: N int32, indices into the dataset's class names.
        ignore: N bool; crowd or difficult: left out of training, scored as COCO does.
        label: The class of the whole image, for classification.
        areas: N float64, square pixels of the objects where the source knows them, as COCO does of its segments; they
            decide which objects are small, medium or large. None means the areas of the boxes.
    """

    boxes: Boxes
    labels: NDArray[np.int32]
    ignore: NDArray[np.bool_]
    label: int | None = None
    areas: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not (self.boxes.shape == (len(self.labels), 4) and len(self.labels) == len(self.ignore)):
            raise ValueError(
                f"columns differ in length: boxes {self.boxes.shape}, labels {self.labels.shape}, "
                f"ignore {self.ignore.shape}"
            )
        if self.areas is not None and self.areas.shape != self.labels.shape:
            raise ValueError(f"areas have shape {self.areas.shape}; expected {self.labels.shape}, one for each box")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a dataset as it is stored: encoded bytes and what is known of it.

    Attributes:
        image: The encoded bytes as they came (JPEG, PNG, …); a view into the shard, not a copy.
        width: Width in pixels of the upright image.
        height: Height in pixels of the upright image.
    """

    image_id: str
    file_name: str
    image: bytes | memoryview
    width: int
    height: int
    split: str
    annotation: Annotation


@dataclass(frozen=True, slots=True)
class Detections:
    """The detections in one image, columns of equal length, the highest score first.

    Attributes:
        boxes: N x 4 float, xyxy in pixels of the upright original image.
        scores: N float, 0 to 1.
        labels: N int, indices into the model's classes.
        classes: Names of the model's classes; empty where only indices are needed.
    """

    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any]
    classes: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not (self.boxes.shape == (len(self.labels), 4) and self.scores.shape == self.labels.shape):
            raise ValueError(
                f"columns differ in length: boxes {self.boxes.shape}, scores {self.scores.shape}, "
                f"labels {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> "Detections":
        """Some of the detections, by a mask, a slice, an index or several."""
        index = [index] if isinstance(index, int | np.integer) else index
        return replace(self, boxes=self.boxes[index], scores=self.scores[index], labels=self.labels[index])

    @property
    def names(self) -> list[str]:
        """The class name of each detection."""
        return [self.classes[label] for label in self.labels.tolist()]

    def at_least(self, threshold: float) -> "Detections":
        """The detections with at least this score."""
        return self[self.scores >= threshold]

    def rows(self) -> Iterator[Row]:
        """The detections as tuples, one per detection."""
        for name, score, box in zip(self.names, self.scores.tolist(), self.boxes.tolist(), strict=True):
            yield (name, score, *box)


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of one image.

    Attributes:
        label: Index into the model's classes.
        score: Its probability; `scores` has that of every class.
        size: Width and height of the image.
    """

    label: int
    name: str
    score: float
    scores: NDArray[np.float32]
    size: tuple[int, int]

    def rows(self) -> Iterator[Row]:
        """One row, with the whole image as its box."""
        yield (self.name, self.score, 0.0, 0.0, float(self.size[0]), float(self.size[1]))

    def to_detections(self, classes: tuple[str, ...]) -> Detections:
        """The class as a box around the whole image."""
        box = np.array([[0, 0, *self.size]], np.float32)
        return Detections(box, np.array([self.score], np.float32), np.array([self.label], np.int32), classes=classes)
