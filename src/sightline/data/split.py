"""Which split an image belongs to: a pure function of its bytes, so that equal images never part."""

import hashlib
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sightline.errors import ConfigError
from sightline.workspace import check_name

_SCALE = 2**64


class Splitter(Protocol):
    """Assigns images to splits."""

    def assign(self, content_digest: bytes, classes: frozenset[int]) -> str:
        """The split of an image, from the digest of its bytes and the classes in it."""
        ...


def parse_fractions(text: str) -> dict[str, float]:
    """Read "train=0.8,val=0.2"; the fractions must add up to 1."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        fractions = {check_name(name.strip()): float(value) for name, value in pairs}
    except ValueError:
        raise ConfigError(f"split {text!r} is not like train=0.8,val=0.1,test=0.1") from None
    whole = math.isclose(sum(fractions.values()), 1.0, abs_tol=1e-6)
    if not whole or len(fractions) != len(pairs) or min(fractions.values()) < 0:
        raise ConfigError(f"split {text!r}: names must differ and fractions must be positive and add up to 1")
    return fractions


def position_of(content_digest: bytes) -> int:
    """A 64-bit position that spreads images evenly; not the digest itself, so that no other use correlates."""
    return int.from_bytes(hashlib.sha256(b"sightline split" + content_digest).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class HashSplitter:
    """Cuts the range of positions by the fractions."""

    names: tuple[str, ...]
    bounds: tuple[int, ...]

    @classmethod
    def from_fractions(cls, fractions: dict[str, float]) -> "HashSplitter":
        """Bounds at the cumulated fractions."""
        total, bounds = 0.0, []
        for fraction in list(fractions.values())[:-1]:
            total += fraction
            bounds.append(round(total * _SCALE))
        return cls(tuple(fractions), tuple(bounds))

    def assign(self, content_digest: bytes, classes: frozenset[int]) -> str:
        """The split of an image; classes do not matter here."""
        return self.names[bisect_right(self.bounds, position_of(content_digest))]


@dataclass(frozen=True, slots=True)
class StratifiedSplitter:
    """Cuts the positions of each stratum on its own; the stratum of an image is the rarest class in it."""

    fallback: HashSplitter
    rarity: dict[int, int]
    bounds: dict[int | None, tuple[int, ...]]
    doubtful: frozenset[int]

    @classmethod
    def from_images(
        cls, fractions: dict[str, float], images: Iterable[tuple[bytes, frozenset[int]]]
    ) -> "StratifiedSplitter":
        """Learn the bounds from the digests and classes of all images."""
        positions = [(position_of(digest), classes) for digest, classes in images]
        counts = Counter(label for _, classes in positions for label in classes)
        rarity = {label: rank for rank, (label, _) in enumerate(sorted(counts.items(), key=lambda c: (c[1], c[0])))}
        strata: defaultdict[int | None, list[int]] = defaultdict(list)
        for position, classes in positions:
            strata[_rarest(classes, rarity)].append(position)
        bounds = {stratum: _cut(sorted(found), fractions) for stratum, found in strata.items()}
        met = Counter(position for found in strata.values() for position in set(found))
        doubtful = frozenset(position for position, times in met.items() if times > 1)
        return cls(HashSplitter.from_fractions(fractions), rarity, bounds, doubtful)

    def assign(self, content_digest: bytes, classes: frozenset[int]) -> str:
        """The split of an image within its stratum."""
        bounds = self.bounds.get(_rarest(classes, self.rarity))
        position = position_of(content_digest)
        if bounds is None or position in self.doubtful:
            return self.fallback.assign(content_digest, classes)
        return self.fallback.names[bisect_right(bounds, position)]


def _rarest(classes: frozenset[int], rarity: dict[int, int]) -> int | None:
    return min(classes, key=lambda label: rarity.get(label, -1), default=None)


def _cut(positions: list[int], fractions: dict[str, float]) -> tuple[int, ...]:
    """Bounds such that each split gets its share of these positions, to the nearest image."""
    total, bounds = 0.0, []
    for fraction in list(fractions.values())[:-1]:
        total += fraction
        cut = round(total * len(positions))
        bounds.append(positions[cut] if cut < len(positions) else _SCALE)
    return tuple(bounds)
