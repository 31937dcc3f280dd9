"""Which images to show of a dataset: some of every class and split, always the same ones."""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from itertools import product

_KEPT = 30
"""Images remembered for each class of each split."""
_RANK_BYTES = 8


class Showcase:
    """Chooses by the hash of the image, so that the choice is spread evenly and does not depend on order."""

    def __init__(self) -> None:
        self._kept: defaultdict[tuple[int, int], list[tuple[bytes, int]]] = defaultdict(list)

    def add(self, position: int, digest: bytes, *, split: int, labels: Iterable[int]) -> None:
        """Consider an image; one without labels counts as a class of its own."""
        for label in labels or (-1,):
            kept = self._kept[split, label]
            # Another part of the digest for every class, or else classes that appear together show the same images.
            begin = label % (len(digest) - _RANK_BYTES + 1)
            rank = digest[begin : begin + _RANK_BYTES]
            if len(kept) < _KEPT or rank < kept[-1][0]:
                insort(kept, (rank, position))
                del kept[_KEPT:]

    def choose(self, count: int) -> tuple[int, ...]:
        """Positions of different images, taking one of each class in turn, splits taking turns too."""
        splits = sorted({split for split, _ in self._kept})
        labels = sorted({label for _, label in self._kept}, key=lambda label: (label < 0, label))
        chosen: dict[int, None] = {}
        for rank, turn, (number, label) in product(range(_KEPT), range(len(splits)), enumerate(labels)):
            kept = self._kept.get((splits[(turn + number) % len(splits)], label), [])
            if rank < len(kept) and len(chosen) < count:
                chosen[kept[rank][1]] = None
        return tuple(chosen)
