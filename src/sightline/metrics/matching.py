"""What COCO counts, before any figure is computed: found boxes in its order, each with what it was matched to."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.metrics.columns import Columns
from sightline.metrics.greedy import ALMOST_ONE, Matches, match
from sightline.metrics.overlap import Extent, Floats, Grouped, overlapping
from sightline.metrics.ragged import Indices, positions_in_runs

AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Area ranges in square pixels, both ends included; a box on a border is in two of them."""

MAX_FOUND = 100
"""Found boxes of one class in one image that are looked at, best first."""


@dataclass(frozen=True, slots=True)
class TrueBoxes:
    """True boxes in the order of image and class.

    Attributes:
        image: Position of the image.
        label: Index of the class.
        extent: Edges and areas.
        crowd: Whether the box is ignored whatever its area.
        counts: Areas x boxes; false where the box is ignored.
    """

    image: Indices
    label: NDArray[np.int32]
    extent: Extent
    crowd: NDArray[np.bool_]
    counts: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundBoxes:
    """Found boxes in the order in which COCO adds them up: by class, then score, then image, then as given.

    Attributes:
        image: Position of the image.
        label: Index of the class.
        score: As given.
        extent: Edges and areas.
        turn: How many boxes of the same image and class come before.
        inside: Areas x boxes; whether the box's own area is in the range.
    """

    image: Indices
    label: NDArray[np.int32]
    score: Floats
    extent: Extent
    turn: Indices
    inside: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Matched:
    """Everything that the figures are computed from.

    Attributes:
        num_classes: Number of classes.
        thresholds: IoU thresholds, ascending.
        true: What is in the images.
        found: What was found in them.
        matches: Who took whom.
    """

    num_classes: int
    thresholds: Floats
    true: TrueBoxes
    found: FoundBoxes
    matches: Matches

    def num_true(self, area: int = 0) -> Indices:
        """How many boxes of each class there are to be found."""
        return np.bincount(self.true.label[self.true.counts[area]], minlength=self.num_classes)

    def verdicts(self, threshold: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each found box of any area, whether it counts, and whether it is right."""
        made = self.matches.at(0, threshold)
        rows, right = self.matches.found[made], self.matches.counts[made]
        counts, correct = self.found.inside[0].copy(), np.zeros(len(self.found.score), np.bool_)
        counts[rows] = right
        correct[rows] = right
        return counts, correct


def match_columns(columns: Columns, *, num_classes: int, thresholds: Floats) -> Matched:
    """Match the boxes of all images."""
    true, found = _true_boxes(columns, num_classes), _found_boxes(columns, num_classes)
    pairs = overlapping(
        Grouped(found.image * num_classes + found.label, found.extent),
        Grouped(true.image * num_classes + true.label, true.extent),
        crowd=true.crowd,
        at_least=min(float(thresholds.min()), ALMOST_ONE),
    )
    matches = match(pairs, turn=found.turn, counts=true.counts, crowd=true.crowd, thresholds=thresholds)
    return Matched(num_classes, thresholds, true, found, matches)


def _true_boxes(columns: Columns, num_classes: int) -> TrueBoxes:
    image = columns.true_images()
    order = np.argsort(image * num_classes + columns.true_labels, kind="stable")
    extent, crowd = Extent.of(columns.true_boxes[order]), columns.ignore[order]
    counts = _inside(columns.true_areas[order]) & ~crowd
    return TrueBoxes(image[order], columns.true_labels[order], extent, crowd, counts)


def _found_boxes(columns: Columns, num_classes: int) -> FoundBoxes:
    image, score = columns.found_images(), columns.scores.astype(np.float64)
    order = np.lexsort((-score, columns.labels))
    turn = _turns((image * num_classes + columns.labels)[order])
    kept = turn < MAX_FOUND
    order = order[kept]
    extent = Extent.of(columns.boxes[order])
    return FoundBoxes(image[order], columns.labels[order], score[order], extent, turn[kept], _inside(extent.area))


def _turns(group: Indices) -> Indices:
    """How many of the same group come before each."""
    order = np.argsort(group, kind="stable")
    turns = np.empty(len(group), np.int64)
    turns[order] = positions_in_runs(group[order])
    return turns


def _inside(area: Floats) -> NDArray[np.bool_]:
    """Areas x boxes: which of `AREAS` a box belongs to."""
    return np.array([(area >= low) & (area <= high) for low, high in AREAS.values()])
