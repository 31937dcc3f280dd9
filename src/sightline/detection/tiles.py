"""Large images cut into tiles, and what was found on them put together again.

Tiles overlap, so that an object smaller than the overlap lies whole on at least one of them. An object on a seam is
found several times, whole or in part: boxes of one class of which one covers most of the smaller one become one box
around both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.structures import Boxes, Detections, empty_boxes

_SAME_OBJECT = 0.5
"""Share of the smaller box that lies in the larger one, from which on both are taken for one object."""

Tile = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels of the image."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How images are cut.

    Attributes:
        size: Side of a tile, in pixels of the image.
        overlap: Share of a tile that it has in common with the next.

    >>> Tiling(100, 0.2).tiles(width=180, height=90)
    [(0, 0, 100, 90), (80, 0, 180, 90)]
    """

    size: int
    overlap: float

    def tiles(self, *, width: int, height: int) -> list[Tile]:
        """The tiles of an image, row by row; all as large as the image allows."""
        across, down = self._starts(width), self._starts(height)
        return [(x, y, min(x + self.size, width), min(y + self.size, height)) for y in down for x in across]

    def _starts(self, side: int) -> list[int]:
        if side <= self.size:
            return [0]
        step = max(1, round(self.size * (1 - self.overlap)))
        count = -(-(side - self.size) // step) + 1
        # Spread evenly: the last tile ends at the edge, and no two overlap more than others do.
        return [round(number * (side - self.size) / (count - 1)) for number in range(count)]


def merge_tiles(found: Sequence[Detections], tiles: Sequence[Tile]) -> Detections:
    """What was found on the tiles of one image, in pixels of the image, surest first."""
    moved = [part.boxes + np.array([tile[0], tile[1]] * 2, np.float32) for part, tile in zip(found, tiles, strict=True)]
    boxes = np.concatenate([empty_boxes(), *moved])
    scores = np.concatenate([np.zeros(0, np.float32), *(part.scores for part in found)])
    labels = np.concatenate([np.zeros(0, np.int32), *(part.labels for part in found)])
    classes = list(dict.fromkeys(labels.tolist()))
    kept = [_merge_class(boxes, scores, np.flatnonzero(labels == label)) for label in classes]
    merged = [(score, label, box) for label, part in zip(classes, kept, strict=True) for score, box in part]
    merged.sort(key=lambda one: -one[0])
    return Detections(
        np.array([box for _, _, box in merged], np.float32).reshape(-1, 4),
        np.array([score for score, _, _ in merged], np.float32),
        np.array([label for _, label, _ in merged], np.int32),
        classes=next((part.classes for part in found), ()),
    )


def _merge_class(boxes: Boxes, scores: NDArray[np.float32], places: NDArray[np.int64]) -> list[tuple[float, Boxes]]:
    """Surest first, each takes in what is the same object; what it has taken in makes it larger."""
    left = places[np.argsort(-scores[places], kind="stable")]
    merged = []
    while len(left):
        box, score = boxes[left[0]], float(scores[left[0]])
        left = left[1:]
        while True:
            same = _covered_share(box, boxes[left]) >= _SAME_OBJECT
            if not same.any():
                break
            taken = boxes[left[same]]
            box = np.concatenate([np.minimum(box[:2], taken[:, :2].min(0)), np.maximum(box[2:], taken[:, 2:].max(0))])
            left = left[~same]
        merged.append((score, box))
    return merged


def _covered_share(box: Boxes, others: Boxes) -> NDArray[np.float32]:
    """Of each pair, the share of the smaller box that lies in the larger one."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = (high - low).clip(0).prod(1)
    areas = np.minimum((box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(1))
    share: NDArray[np.float32] = common / np.maximum(areas, np.float32(1e-6))
    return share
