"""How far two sets of detections of the same images agree.

A detection counts as matched if the other set has one of the same class, with every edge within a pixel and the score
within 0.01, that is not matched already. Where a set ends, the smallest difference decides on which side a detection
falls: at the lowest score that is reported, and at the last place where a model reports at most so many. So those are
asked for a partner which lie above that end by more than the tolerance of the score. Both sets are asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.engines.engine import PIXEL_TOLERANCE, SCORE_TOLERANCE
from sightline.structures import Detections


@dataclass(frozen=True)
class Agreement:
    compared: int
    matched: int

    @property
    def share(self) -> float:
        return self.matched / self.compared if self.compared else float("nan")


def agreement(ours: Sequence[Detections], theirs: Sequence[Detections], *, threshold: float, limit: int) -> Agreement:
    """Over all images, in both directions.

    Args:
        threshold: The lowest score that the model reports.
        limit: How many detections of an image it reports at most.
    """
    compared = matched = 0
    for one, other in [*zip(ours, theirs, strict=True), *zip(theirs, ours, strict=True)]:
        cuts = [float(found.scores.min()) for found in (one, other) if len(found.scores) >= limit]
        asked = one.scores >= max([threshold, *cuts]) + SCORE_TOLERANCE
        compared += int(asked.sum())
        matched += _matched(one, np.flatnonzero(asked).tolist(), other)
    return Agreement(compared, matched)


def _matched(one: Detections, asked: Sequence[int], other: Detections) -> int:
    free = np.ones(len(other), np.bool_)
    matched = 0
    for index in asked:
        partners = _partners(one, index, other) & free
        if partners.any():
            free[partners.argmax()] = False
            matched += 1
    return matched


def _partners(one: Detections, index: int, other: Detections) -> NDArray[np.bool_]:
    near = np.abs(other.boxes - one.boxes[index]).max(1, initial=0) <= PIXEL_TOLERANCE
    alike = np.abs(other.scores - one.scores[index]) <= SCORE_TOLERANCE
    partners: NDArray[np.bool_] = near & alike & (other.labels == one.labels[index])
    return partners
