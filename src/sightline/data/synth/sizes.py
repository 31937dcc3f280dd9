"""How many defects a board has, of which class and how large: the distributions of DeepPCB's trainval split.

Its 1,000 images hold 6,873 boxes. A box there is the extent of the changed pixels plus a fixed margin: measured on
the isolated defects (copper, pin-hole), 10 pixels on the left and at the top and 9 on the right and at the bottom
in more than 90 % of the cases, whatever the defect's size.
"""

from __future__ import annotations

import math

from sightline.data.synth.dice import Dice

OPEN, SHORT, MOUSEBITE, SPUR, COPPER, PIN_HOLE = range(6)

MARGIN_BEFORE, MARGIN_AFTER = 10, 9

# Images with 1, 2, ... 15 defects.
_COUNTS = (4, 5, 21, 73, 143, 181, 203, 171, 123, 50, 10, 13, 2, 0, 1)
_MIX = (0.187, 0.150, 0.201, 0.166, 0.147, 0.150)

# Widths and heights of the changed pixels at these ranks, by class, and the correlation of the two.
_RANKS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_WIDTHS = (
    (5, 11, 15, 19, 32, 58, 100, 110),
    (5, 8, 12, 23, 35, 56, 92, 100),
    (5, 8, 11, 15, 20, 25, 50, 55),
    (6, 10, 12, 15, 19, 23, 40, 44),
    (6, 10, 13, 16, 22, 29, 49, 54),
    (5, 8, 11, 15, 20, 25, 44, 48),
)
_HEIGHTS = (
    (4, 8, 11, 15, 23, 37, 82, 90),
    (4, 7, 10, 18, 27, 40, 75, 82),
    (4, 6, 8, 10, 15, 20, 39, 43),
    (5, 7, 9, 13, 17, 22, 38, 42),
    (5, 9, 12, 16, 22, 31, 52, 57),
    (4, 7, 9, 13, 19, 25, 44, 48),
)
_CORRELATION = (0.33, -0.28, 0.41, 0.24, 0.49, 0.40)


def draw_classes(*, dice: Dice) -> list[int]:
    """The classes of a board's defects, in random order.

    A board has about one of each, as in DeepPCB, so most are dealt from a deck of the six and the rest drawn freely.
    """
    count = 1 + dice.weighted(_COUNTS)
    deck: list[int] = []
    classes = []
    for _ in range(count):
        if dice.chance(0.35):
            classes.append(dice.weighted(_MIX))
            continue
        deck = deck or list(range(6))
        classes.append(deck.pop(dice.weighted([_MIX[c] for c in deck])))
    return classes


def draw_extent(defect: int, *, dice: Dice) -> tuple[int, int]:
    """Width and height, in pixels, that the changed pixels of a defect should span."""
    rho = _CORRELATION[defect]
    a, b = dice.bell(), dice.bell()
    b = rho * a + math.sqrt(1 - rho * rho) * b
    return round(_at_rank(_WIDTHS[defect], _rank(a))), round(_at_rank(_HEIGHTS[defect], _rank(b)))


def _rank(normal: float) -> float:
    return 0.5 * (1.0 + math.erf(normal / math.sqrt(2.0)))


def _at_rank(values: tuple[int, ...], rank: float) -> float:
    """The quantile function, linear between the measured ranks."""
    i = max(j for j in range(len(_RANKS) - 1) if _RANKS[j] <= rank)
    share = (rank - _RANKS[i]) / (_RANKS[i + 1] - _RANKS[i])
    return values[i] + share * (values[i + 1] - values[i])
