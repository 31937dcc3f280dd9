"""Whether a process on another machine sees the driver's images: not files of the same names, but the same bytes."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sightline.detection.item import Item, Source
from sightline.errors import ImageError, SightlineError, SourceError
from sightline.retry import STORAGE_RETRY, RetryPolicy

_ELSEWHERE_RETRY = RetryPolicy(give_up_after_s=5.0)
"""Shorter: a machine that does not see the source must not delay the start, for it can read through the driver's."""


@dataclass(frozen=True)
class Sample:
    """An image, and a digest of its bytes as the driver reads them."""

    item: Item
    digest: bytes


def take_samples(source: Source, items: Iterable[Item]) -> tuple[Sample, ...]:
    """Read some images; those that cannot be used say nothing about another machine and are left out.

    Raises:
        SourceError: The source could not be read for longer than the retry policy allows.
    """
    samples = []
    for item in items:
        try:
            samples.append(Sample(item, _digest(_read(source, item, STORAGE_RETRY))))
        except ImageError:
            continue
    return tuple(samples)


def why_not_seen(source: Source, samples: Iterable[Sample]) -> str:
    """What this process sees in place of the driver's images; empty if it sees the same."""
    try:
        if not source.is_visible():
            return f"{source.name} is not there"
        for sample in samples:
            if _digest(_read(source, sample.item, _ELSEWHERE_RETRY)) != sample.digest:
                return f"{sample.item.uri} has other bytes there"
    except (SightlineError, OSError) as error:
        return f"it cannot be read there: {error}"
    return ""


def _read(source: Source, item: Item, policy: RetryPolicy) -> bytes:
    return policy.call(
        lambda: source.read(item), what=f"reading {item.uri}", passes=lambda error: isinstance(error, SourceError)
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
