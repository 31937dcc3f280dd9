"""Distributions in a few numbers: histograms with bins that people can read, and quantiles."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.report.finding import Frozen

_MANY = 30
"""Counts up to this get a bin each; beyond it bins double."""
_FEW_BINS = 9

Values = NDArray[Any]


class Histogram(Frozen):
    """Counts between edges; bin i holds edges[i] <= value < edges[i + 1], and the last one its upper edge too.

    Attributes:
        log: Whether the edges are evenly spaced on a logarithmic axis.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool


class Quantiles(Frozen):
    """The spread of some values."""

    minimum: float
    p05: float
    median: float
    p95: float
    maximum: float


def log_histogram(values: Values, *, base: int, steps: int, low: float, high: float) -> Histogram:
    """Bins whose edges are powers of a base, no more of them than the values need.

    Args:
        steps: Bins from one whole power to the next; twice as many when the values are close together.
        low: Lowest edge there may be; what lies below is counted in the first bin.
        high: Highest edge there may be; what lies above is counted in the last bin.
    """
    clipped = np.clip(np.asarray(values, np.float64), low, high)
    if not len(clipped):
        return Histogram(edges=(), counts=(), log=True)
    # Rounding first, so that a value which is itself an edge does not open an empty bin below it.
    exponents = np.round(steps * np.log([clipped.min(), clipped.max()]) / np.log(base), 9)
    first, last = int(np.floor(exponents[0])), int(np.ceil(exponents[1]))
    if last - first < _FEW_BINS:
        first, last, steps = 2 * first, 2 * last, 2 * steps
    edges = np.array([float(base) ** (step / steps) for step in range(first, max(last, first + 1) + 1)])
    counts, _ = np.histogram(np.clip(clipped, edges[0], edges[-1]), bins=edges)
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()), log=True)


def count_histogram(values: NDArray[np.int64]) -> Histogram:
    """Bins for whole numbers from 0: one each, or doubling (0, 1, 2-3, 4-7, …) when they reach far."""
    if not len(values):
        return Histogram(edges=(), counts=(), log=False)
    top = int(values.max())
    doubling = [0, *(1 << power for power in range(top.bit_length() + 1))]
    edges = list(range(top + 2)) if top <= _MANY else doubling
    counts, _ = np.histogram(values, bins=np.array(edges) - 0.5)
    return Histogram(edges=tuple(map(float, edges)), counts=tuple(counts.tolist()), log=False)


def quantiles(values: Values) -> Quantiles | None:
    """Five numbers, or None of nothing."""
    if not len(values):
        return None
    low, p05, median, p95, high = (float(f"{value:.6g}") for value in np.quantile(values, [0, 0.05, 0.5, 0.95, 1]))
    return Quantiles(minimum=low, p05=p05, median=median, p95=p95, maximum=high)
