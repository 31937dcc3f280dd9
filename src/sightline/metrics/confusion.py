"""Which classes a detector takes for which, at one IoU and one score threshold.

Found boxes below the score are dropped. The others are paired in two rounds:

1. as for average precision: best score first, each with the free box of its own class that it overlaps most, and at
   least by the IoU. This fills the diagonal, which is therefore the count of right ones in precision and recall;
2. what is left of both, best score first, each with the free box of any other class that it overlaps most, and at
   least by the IoU. This fills the rest.

Found boxes that no round paired are background taken for an object, true ones are objects taken for background.
Ignored true boxes, and found boxes matched to them, are left out. So row sums are the numbers of true boxes, and column
sums the numbers of found ones that count.
"""

import numpy as np
from numpy.typing import NDArray

from sightline.metrics.greedy import match
from sightline.metrics.matching import Matched
from sightline.metrics.overlap import Grouped, overlapping
from sightline.metrics.ragged import Indices, positions_in_runs

Confusion = NDArray[np.int64]
"""True classes x found classes; the last row and column are the background."""


def confusion_matrix(matched: Matched, *, threshold: int, score: float) -> Confusion:
    """Count who was taken for whom.

    Args:
        threshold: Position of the IoU in `matched.thresholds`.
        score: Found boxes with at least this score are kept.
    """
    counts, _ = matched.verdicts(threshold)
    kept, free = counts & (matched.found.score >= score), matched.true.counts[0].copy()
    found, true = _same_class(matched, threshold, kept)
    matrix = np.zeros((matched.num_classes + 1,) * 2, np.int64)
    _count(matrix, matched.true.label[true], matched.found.label[found])
    kept[found], free[true] = False, False
    found, true = _other_class(matched, threshold, np.flatnonzero(kept), np.flatnonzero(free))
    _count(matrix, matched.true.label[true], matched.found.label[found])
    kept[found], free[true] = False, False
    _count(matrix, np.full(np.count_nonzero(kept), -1), matched.found.label[kept])
    _count(matrix, matched.true.label[free], np.full(np.count_nonzero(free), -1))
    return matrix


def _same_class(matched: Matched, threshold: int, kept: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Rows of found and true boxes that are right at the score; dropping the lower ones does not change the others."""
    matches = matched.matches
    made = matches.at(0, threshold) & matches.counts & kept[matches.found]
    return matches.found[made], matches.true[made]


def _other_class(matched: Matched, threshold: int, kept: Indices, free: Indices) -> tuple[Indices, Indices]:
    """Rows of found and true boxes that overlap; none has the same class, or the first round had paired it."""
    kept = kept[np.lexsort((-matched.found.score[kept], matched.found.image[kept]))]
    image, no_crowd = matched.found.image[kept], np.zeros(len(free), np.bool_)
    pairs = overlapping(
        Grouped(image, matched.found.extent[kept]),
        Grouped(matched.true.image[free], matched.true.extent[free]),
        crowd=no_crowd,
        at_least=float(matched.thresholds[threshold]),
    )
    matches = match(
        pairs,
        turn=positions_in_runs(image),
        counts=~no_crowd[None],
        crowd=no_crowd,
        thresholds=matched.thresholds[[threshold]],
    )
    return kept[matches.found], free[matches.true]


def _count(matrix: Confusion, true: NDArray[np.integer], found: NDArray[np.integer]) -> None:
    np.add.at(matrix, (true, found), 1)
