"""Index arithmetic for rows that belong to runs of different lengths, without a loop over the runs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def ranges(starts: Indices, counts: Indices) -> Indices:
    """The integers `start … start + count - 1` of every run, one run after the other.

    Example:
        >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
        [7, 8, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def positions_in_runs(ids: NDArray[Any]) -> Indices:
    """How many equal ids stand before each one; equal ids must be neighbours.

    Example:
        >>> positions_in_runs(np.array([4, 4, 4, 1, 1])).tolist()
        [0, 1, 2, 0, 1]
    """
    starts = run_starts(ids)
    counts = np.diff(starts, append=len(ids))
    return np.arange(len(ids)) - np.repeat(starts, counts)


def run_starts(ids: NDArray[Any]) -> Indices:
    """Where each run of equal neighbours begins."""
    new = np.ones(len(ids), np.bool_)
    new[1:] = ids[1:] != ids[:-1]
    return np.flatnonzero(new)


def prefix_sums(values: NDArray[Any]) -> Indices:
    """One more than `values`: entry i is the sum of the first i."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
