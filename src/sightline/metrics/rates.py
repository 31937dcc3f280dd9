"""Precision, recall and F1 from counts, in one place so that detectors and classifiers mean the same by them."""

from dataclasses import dataclass

import numpy as np

from sightline.metrics.overlap import Floats
from sightline.metrics.ragged import Indices


@dataclass(frozen=True, slots=True)
class Rates:
    """Three views of the same counts; NaN where there was nothing to divide by.

    Attributes:
        precision: Right ones by found ones; NaN if nothing was found.
        recall: Right ones by true ones; NaN if there was nothing to find.
        f1: Twice the right ones by found and true ones; NaN only if there were neither.
    """

    precision: float
    recall: float
    f1: float


def rates(*, right: int, found: int, true: int) -> Rates:
    """Precision, recall and F1.

    Example:
        >>> rates(right=2, found=4, true=2)
        Rates(precision=0.5, recall=1.0, f1=0.6666666666666666)
    """
    return Rates(_ratio(right, found), _ratio(right, true), _ratio(2 * right, found + true))


def rates_of_classes(*, right: Indices, found: Indices, true: Indices) -> list[Rates]:
    """The rates of each class from its counts."""
    rows = zip(right.tolist(), found.tolist(), true.tolist(), strict=True)
    return [rates(right=r, found=f, true=t) for r, f, t in rows]


def f1_scores(*, right: Indices, found: Indices, true: int) -> Floats:
    """F1 for growing numbers of found ones, none of them zero."""
    return np.asarray(2 * right / (found + true), np.float64)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
