"""Boxes that are probably mistakes: the rules, each over many boxes at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.report.finding import Severity
from sightline.structures import Boxes

MIN_SIDE_PX = 2.0
MIN_AREA_SHARE = 1e-5
MAX_ASPECT = 20.0
WHOLE_IMAGE_SHARE = 0.95
SAME_IOU = 0.95

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BoxTable:
    """Boxes of many images, columns of equal length; boxes of one image are neighbours.

    Attributes:
        xyxy: N x 4 float32, in pixels.
        label: N int32.
        image: N int64, the position of the box's image.
        image_size: N x 2 float32, width and height of the box's image.
    """

    xyxy: Boxes
    label: NDArray[np.int32]
    image: NDArray[np.int64]
    image_size: NDArray[np.float32]

    @property
    def sides(self) -> NDArray[np.float32]:
        """N x 2, width and height in pixels."""
        return self.xyxy[:, 2:] - self.xyxy[:, :2]

    @property
    def area_share(self) -> NDArray[np.float32]:
        """N, area as a share of the image's."""
        sides = self.sides / self.image_size
        return sides[:, 0] * sides[:, 1]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of suspicious box; `find` gives the rows it concerns, ascending."""

    kind: str
    severity: Severity
    advice: str
    find: Callable[[BoxTable], Rows]


def find_tiny(table: BoxTable) -> Rows:
    """Boxes too small to be seen by a detector, or by anyone."""
    return np.flatnonzero((table.sides.min(axis=1) < MIN_SIDE_PX) | (table.area_share < MIN_AREA_SHARE))


def find_extreme_aspect(table: BoxTable) -> Rows:
    """Boxes much longer than wide."""
    sides = table.sides
    return np.flatnonzero(sides.max(axis=1) > MAX_ASPECT * sides.min(axis=1))


def find_whole_image(table: BoxTable) -> Rows:
    """Boxes that leave almost nothing of the image out."""
    return np.flatnonzero(table.area_share > WHOLE_IMAGE_SHARE)


def find_repeated(table: BoxTable) -> Rows:
    """Boxes that repeat an earlier one of the same class in the same image."""
    first, second = same_place_pairs(table)
    return np.unique(np.maximum(first, second)[table.label[first] == table.label[second]])


def find_contradicting(table: BoxTable) -> Rows:
    """Boxes at the place of an earlier one of another class."""
    first, second = same_place_pairs(table)
    return np.unique(np.maximum(first, second)[table.label[first] != table.label[second]])


RULES = (
    Rule(
        "boxes drawn twice",
        "warning",
        f"The same class, IoU above {SAME_IOU}: the detector is asked to find one object twice. Remove the copies.",
        find_repeated,
    ),
    Rule(
        "boxes with two classes",
        "warning",
        f"Two classes at one place, IoU above {SAME_IOU}: one of them is probably wrong.",
        find_contradicting,
    ),
    Rule(
        "tiny boxes",
        "warning",
        f"A side below {MIN_SIDE_PX:g} px, or an area below 0.001 % of the image: often a slip of the mouse.",
        find_tiny,
    ),
    Rule(
        "very long boxes",
        "note",
        f"One side more than {MAX_ASPECT:g} times the other: right for cables and poles, otherwise a slip.",
        find_extreme_aspect,
    ),
    Rule(
        "boxes around the whole image",
        "note",
        f"More than {WHOLE_IMAGE_SHARE:.0%} of the area: right for close-ups, otherwise a label for the image.",
        find_whole_image,
    ),
)


def same_place_pairs(table: BoxTable) -> tuple[Rows, Rows]:
    """Pairs of rows of one image whose boxes overlap with an IoU above SAME_IOU.

    Sorted by image and left edge, each box is compared with its next neighbour, then the one after, … until no box has
    one whose left edge is near enough. So memory stays linear, and dense images do not take quadratic time.
    """
    order = np.lexsort((table.xyxy[:, 0], table.image))
    box, image = table.xyxy[order].astype(np.float64), table.image[order]
    # The right-hand one cannot overlap more than 1 - distance / width of the left-hand one.
    reach = box[:, 0] + (1 - SAME_IOU) * (box[:, 2] - box[:, 0])
    first, second = [], []
    candidates = np.arange(len(order), dtype=np.int64)
    for step in range(1, len(order)):
        candidates = candidates[candidates + step < len(order)]
        after = candidates + step
        near = (image[after] == image[candidates]) & (box[after, 0] <= reach[candidates])
        candidates = candidates[near]
        if not len(candidates):
            break
        same = _iou(box[candidates], box[candidates + step]) > SAME_IOU
        first.append(order[candidates[same]])
        second.append(order[candidates[same] + step])
    empty = np.zeros(0, np.int64)
    return np.concatenate([empty, *first]), np.concatenate([empty, *second])


def _iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """IoU of each row of a with the same row of b."""
    overlap = np.clip(np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]), 0, None).prod(axis=1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(axis=1), (b[:, 2:] - b[:, :2]).prod(axis=1)
    shared: NDArray[np.float64] = overlap / (area_a + area_b - overlap)
    return shared
