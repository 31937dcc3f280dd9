"""COCO's greedy matching, for all groups, area ranges and IoU thresholds at once.

In each group the found boxes take turns, best score first. Each takes the true box that it overlaps most among those
still free (of equals the last one), and one that counts before one that is ignored. A crowd can be taken again and
again. Every combination of area range and threshold is a matching of its own.

A matching is one bit of a 64-bit word, 16 thresholds times 4 area ranges, so all of them advance with the same few
bitwise operations. Groups advance together too: the loop is over turns and choices, not over boxes or images.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sightline.metrics.overlap import Floats, Pairs
from sightline.metrics.ragged import Indices, positions_in_runs, run_starts

Words = NDArray[np.uint64]

THRESHOLDS_PER_WORD = 16
MAX_AREAS = 64 // THRESHOLDS_PER_WORD
ALMOST_ONE = 1 - 1e-10
"""COCO's highest threshold: asked for 1, it takes this, to leave room for rounding."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Which found box took which true box in which matchings, in the order of `found`.

    Attributes:
        found: Row of the found box.
        true: Row of the true box.
        counts: Whether the true box counts in these matchings; else it is ignored, and with it the found box.
        won: Words x matches; the matchings in which the pair was made.
    """

    found: Indices
    true: Indices
    counts: NDArray[np.bool_]
    won: Words

    def at(self, area: int, threshold: int) -> NDArray[np.bool_]:
        """Which of the pairs were made at an area range and threshold, by their positions."""
        word, place = divmod(threshold, THRESHOLDS_PER_WORD)
        bit = np.uint64(1) << np.uint64(area * THRESHOLDS_PER_WORD + place)
        made: NDArray[np.bool_] = (self.won[word] & bit) != 0
        return made


@dataclass(frozen=True, slots=True)
class _Bids:
    """Pairs in the order in which they are tried; those between two `bounds` do not touch each other.

    A pair whose true box counts in one area range and is ignored in another stands here twice.
    """

    found: Indices
    true: Indices
    counts: NDArray[np.bool_]
    wanted: Words
    bounds: list[int]


def match(
    pairs: Pairs, *, turn: Indices, counts: NDArray[np.bool_], crowd: NDArray[np.bool_], thresholds: Floats
) -> Matches:
    """Match found to true boxes.

    Args:
        pairs: Candidates, with at least the overlap of the lowest threshold.
        turn: For each found box, how many of its group come before it.
        counts: Areas x true boxes; false where a true box is ignored.
        crowd: For each true box, whether it may be taken more than once.
        thresholds: IoU that a pair must reach.
    """
    assert len(counts) <= MAX_AREAS, "an area range more than a word has room for"
    bids = _in_order(pairs, turn, _wanted(pairs, counts, thresholds), _wanted(pairs, ~counts, thresholds))
    # A crowd is never marked as taken.
    closable = np.where(crowd, np.uint64(0), ~np.uint64(0))
    won = np.array([_settle(bids, word, closable, len(turn)) for word in bids.wanted], np.uint64)
    some = np.flatnonzero(won.any(axis=0))
    some = some[np.argsort(bids.found[some], kind="stable")]
    return Matches(bids.found[some], bids.true[some], bids.counts[some], won[:, some])


def _wanted(pairs: Pairs, eligible: NDArray[np.bool_], thresholds: Floats) -> Words:
    """Words x pairs: the matchings in which a pair overlaps enough and its true box is eligible."""
    words = np.zeros((-(-len(thresholds) // THRESHOLDS_PER_WORD), len(pairs.iou)), np.uint64)
    for number, threshold in enumerate(thresholds):
        word, place = divmod(number, THRESHOLDS_PER_WORD)
        words[word] |= (pairs.iou >= min(threshold, ALMOST_ONE)).astype(np.uint64) << np.uint64(place)
    ones = np.uint64((1 << THRESHOLDS_PER_WORD) - 1)
    areas = np.zeros(len(pairs.iou), np.uint64)
    for area, true in enumerate(eligible):
        areas |= np.where(true[pairs.true], ones << np.uint64(area * THRESHOLDS_PER_WORD), np.uint64(0))
    # Multiplying repeats the bits of the thresholds once for each area range.
    repeat = np.uint64(sum(1 << (area * THRESHOLDS_PER_WORD) for area in range(len(eligible))))
    return words * repeat & areas


def _in_order(pairs: Pairs, turn: Indices, counting: Words, ignored: Words) -> _Bids:
    """Sort by turn and, within a found box, by its preference."""
    first, second = np.flatnonzero(counting.any(axis=0)), np.flatnonzero(ignored.any(axis=0))
    both = pairs[np.concatenate([first, second])]
    wanted = np.concatenate([counting[:, first], ignored[:, second]], axis=1)
    counts = np.arange(len(both.iou)) < len(first)
    order = np.lexsort((-both.true, -both.iou, ~counts, both.found))
    choice = positions_in_runs(both.found[order])
    steps = turn[both.found[order]] * (choice.max(initial=0) + 1) + choice
    together = np.argsort(steps, kind="stable")
    order, starts = order[together], run_starts(steps[together])
    bounds = [*starts.tolist(), len(order)]
    return _Bids(both.found[order], both.true[order], counts[order], wanted[:, order], bounds)


def _settle(bids: _Bids, wanted: Words, closable: Words, num_found: int) -> Words:
    """For each bid, the matchings of one word in which it wins: neither of its boxes is taken yet."""
    matched, taken = np.zeros(num_found, np.uint64), np.zeros(len(closable), np.uint64)
    won = np.zeros_like(wanted)
    for lo, hi in pairwise(bids.bounds):
        found, true = bids.found[lo:hi], bids.true[lo:hi]
        new = wanted[lo:hi] & ~(matched[found] | taken[true])
        matched[found] |= new
        taken[true] |= new & closable[true]
        won[lo:hi] = new
    return won
