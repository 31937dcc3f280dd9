"""The values that travel between the parts: annotated images, encoded and decoded."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float32]
"""N x 4, xyxy in pixels of the upright image; x0 <= x < x1."""


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
