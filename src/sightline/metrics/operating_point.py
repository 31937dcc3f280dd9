"""Precision, recall and F1 of a detector as it would be used: above one score threshold, at one IoU."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.metrics.matching import Matched
from sightline.metrics.overlap import Floats
from sightline.metrics.rates import Rates, f1_scores, rates, rates_of_classes


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What remains of a detector's boxes at a score threshold.

    Attributes:
        iou: Overlap from which a found box is right.
        score: Boxes with at least this score are kept; NaN if nothing was found and there was nothing to choose from.
        overall: Counts of all classes added up, then divided (micro average).
        per_class: One for each class.
    """

    iou: float
    score: float
    overall: Rates
    per_class: tuple[Rates, ...]


def operating_point(matched: Matched, *, threshold: int, score: float | None = None) -> OperatingPoint:
    """Precision, recall and F1 at a score, or at the best one.

    Found boxes are matched as for average precision; those matched to ignored boxes do not count.

    Args:
        threshold: Position of the IoU in `matched.thresholds`.
        score: None takes the score with the best micro-averaged F1; of equals, the highest.
    """
    counts, correct = matched.verdicts(threshold)
    label, scores = matched.found.label, matched.found.score
    true = matched.num_true()
    if score is None:
        score = _best_score(scores[counts], correct[counts], int(true.sum()))
    kept = counts & (scores >= score)
    found = np.bincount(label[kept], minlength=matched.num_classes)
    right = np.bincount(label[kept & correct], minlength=matched.num_classes)
    return OperatingPoint(
        iou=float(matched.thresholds[threshold]),
        score=score,
        overall=rates(right=int(right.sum()), found=int(found.sum()), true=int(true.sum())),
        per_class=tuple(rates_of_classes(right=right, found=found, true=true)),
    )


def _best_score(scores: Floats, correct: NDArray[np.bool_], num_true: int) -> float:
    if not len(scores):
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    scores = scores[order]
    # Boxes of the same score are kept or dropped together, so only the last of them is a place to cut.
    cut = np.flatnonzero(np.diff(scores, append=-np.inf))
    f1 = f1_scores(right=np.cumsum(correct[order], dtype=np.int64)[cut], found=cut + 1, true=num_true)
    return float(scores[cut[f1.argmax()]])
