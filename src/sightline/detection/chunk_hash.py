"""Which images a chunk has, as one short text that its plan and its rows both store.

It does not depend on the order of the images, so that it can be computed from rows however they are read.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable

_BYTES = 16


def hash_ids(ids: Iterable[str]) -> str:
    """The hash of the ids of a chunk's images, each of which counts as often as it is there.

    >>> hash_ids(["a", "b"]) == hash_ids(["b", "a"]) != hash_ids(["a", "b", "b"])
    True
    """
    total = count = 0
    for image_id in ids:
        total, count = total + _number(image_id), count + 1
    return _text(total, count)


def count_of(found: str) -> int:
    """How many images a hash is of.

    >>> count_of(hash_ids(["a", "b"]))
    2
    """
    return int(found.partition("-")[0])


class ChunkHashes:
    """The hashes of many chunks, from rows in any order."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = defaultdict(int)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, chunk: str, image_id: str) -> None:
        """One more row."""
        self._totals[chunk] += _number(image_id)
        self._counts[chunk] += 1

    def to_dict(self) -> dict[str, str]:
        """The hash of every chunk."""
        return {chunk: _text(total, self._counts[chunk]) for chunk, total in self._totals.items()}


def _number(image_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(image_id.encode("utf-8", "surrogateescape"), digest_size=_BYTES).digest())


def _text(total: int, count: int) -> str:
    return f"{count}-{total % (1 << 8 * _BYTES):0{2 * _BYTES}x}"
