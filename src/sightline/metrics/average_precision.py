"""COCO's average precision and recall of every class, area range and IoU threshold.

Precision can rise, and recall does rise, only where a found box is right. So only those positions are visited; how many
wrong ones stand before them comes from one running count per area range.
"""

from dataclasses import dataclass

import numpy as np

from sightline.metrics.matching import AREAS, Matched
from sightline.metrics.overlap import Floats
from sightline.metrics.ragged import Indices, prefix_sums

RECALLS = np.linspace(0.0, 1.0, 101)
"""Where COCO reads precision off the curve."""

MAX_FOUND_OF_RECALL = (1, 10, 100)
"""Recall is given for the best 1, 10 and 100 found boxes of an image and class."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Figures of each class, NaN for classes that have no true box in the area range.

    Attributes:
        precision: Areas x thresholds x classes.
        recall: Areas x thresholds x `MAX_FOUND_OF_RECALL` x classes.
    """

    precision: Floats
    recall: Floats


@dataclass(frozen=True, slots=True)
class _Hits:
    """The right ones among the found boxes, by class and score.

    Attributes:
        row: Row of the found box.
        place: How many found boxes of its class that count are not behind it, itself included.
        bounds: Where each class begins, and the end.
    """

    row: Indices
    place: Indices
    bounds: Indices


def average(matched: Matched) -> Averages:
    """Average precision and recall."""
    shape = len(AREAS), len(matched.thresholds)
    precision = np.full((*shape, matched.num_classes), np.nan)
    recall = np.full((*shape, len(MAX_FOUND_OF_RECALL), matched.num_classes), np.nan)
    class_bounds = np.searchsorted(matched.found.label, np.arange(matched.num_classes + 1))
    for area in range(len(AREAS)):
        num_true, inside = matched.num_true(area), prefix_sums(matched.found.inside[area])
        for threshold in range(len(matched.thresholds)):
            hits = _hits(matched, area, threshold, inside, class_bounds)
            precision[area, threshold] = _precision(hits, num_true)
            recall[area, threshold] = _recall(hits, matched, num_true)
    return Averages(precision, recall)


def _hits(matched: Matched, area: int, threshold: int, inside: Indices, class_bounds: Indices) -> _Hits:
    """Find the right ones.

    A found box counts if it is right, does not if it was matched to an ignored box, and if it was not matched counts
    when its own area is in the range: `inside` is the running count of the last kind, corrected at the matched ones.
    """
    matches = matched.matches
    made = matches.at(area, threshold)
    row, right = matches.found[made], matches.counts[made]
    correction = prefix_sums(right.astype(np.int64) - matched.found.inside[area][row])
    before_class = inside[class_bounds] + correction[np.searchsorted(row, class_bounds)]
    place = inside[row + 1] + correction[1:] - before_class[matched.found.label[row]]
    row, place = row[right], place[right]
    return _Hits(row, place, np.searchsorted(row, class_bounds))


def _precision(hits: _Hits, num_true: Indices) -> Floats:
    averages = np.where(num_true > 0, 0.0, np.nan)
    for label in np.flatnonzero(np.diff(hits.bounds)):
        places = hits.place[hits.bounds[label] : hits.bounds[label + 1]]
        num_right = np.arange(1, len(places) + 1)
        # The spacing is COCO's guard against 0 / 0; it costs 1 / 1 its last digit, and here too.
        precision = num_right / (places + np.spacing(1.0))
        best_from_here = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
        reached = np.searchsorted(num_right / num_true[label], RECALLS, side="left")
        averages[label] = best_from_here[reached].mean()
    return averages


def _recall(hits: _Hits, matched: Matched, num_true: Indices) -> Floats:
    turn, label = matched.found.turn[hits.row], matched.found.label[hits.row]
    num_right = [np.bincount(label[turn < most], minlength=len(num_true)) for most in MAX_FOUND_OF_RECALL]
    return np.where(num_true > 0, np.array(num_right) / np.maximum(num_true, 1), np.nan)


def mean_known(figures: Floats) -> float:
    """The mean of all figures that are not NaN, NaN if there is none."""
    known = figures[~np.isnan(figures)]
    return float(known.mean()) if known.size else float("nan")
