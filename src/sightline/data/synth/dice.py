"""Random choices that are the same in every process and on every machine.

Everything is derived from `Generator.random`, whose stream NumPy's Philox fixes by its key: the higher-level
methods may change between NumPy versions, and their scalar calls cost several times as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Dice:
    """A keyed stream of random choices.

    Args:
        seed: The run's seed; any integer, taken modulo 2**64.
        index: The image's number; `stream` keeps independent uses of one image apart.
        stream: A small number naming the use.
    """

    def __init__(self, *, seed: int, index: int, stream: int = 0) -> None:
        key = [seed % 2**64, (index * 16 + stream) % 2**64]
        self.rng = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
        self._random = self.rng.random

    def between(self, low: float, high: float) -> float:
        """A uniform float in [low, high)."""
        return low + (high - low) * float(self._random())

    def whole(self, low: int, high: int) -> int:
        """A uniform integer in [low, high], both ends included."""
        return low + int((high - low + 1) * self._random())

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return bool(self._random() < probability)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return options[int(len(options) * self._random())]

    def weighted(self, weights: Sequence[float]) -> int:
        """An index drawn in proportion to the weights."""
        left = float(self._random()) * sum(weights)
        for i, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return i
        return len(weights) - 1

    def bell(self) -> float:
        """A standard normal number (Box-Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - float(self._random())))
        return radius * math.cos(math.tau * float(self._random()))
