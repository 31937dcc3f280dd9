"""Which image goes to which rank at which step, as a pure function of seed, epoch and step.

An epoch is a sequence of positions 0 … n-1. `permute` says which image stands at a position; the global batch of a
step is the next `batch` positions; a rank takes a contiguous piece of it. Nothing is remembered and nothing depends on
the number of ranks, so a run can stop at any position and go on with another world size or batch size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 8
_SMALLEST_BITS = 6  # Over 4 bits the orders of 3 or 4 images are measurably unequal in frequency.
_POSITIONS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank loads in one step.

    Attributes:
        epoch: Number of the epoch.
        step: Number of the step, counted from where the epoch was started or resumed.
        positions: int64, ascending places in the epoch's order; empty when the batch is smaller than the world.
        indices: int64, the images at those places.
    """

    epoch: int
    step: int
    positions: Positions
    indices: Positions


@dataclass(frozen=True, slots=True)
class Sampler:
    """The order of a dataset's images in every epoch, and its division among ranks.

    Attributes:
        num_images: Images in the dataset.
        batch: Images in one global batch, over all ranks.
        seed: Any integer; only its lowest 64 bits count.
        shuffle: Whether each epoch has its own order; else images come as they are stored.

    Example:
        >>> Sampler(10, 4, seed=0, shuffle=False).positions(0, 2, rank=1, world_size=2).tolist()
        [9]
    """

    num_images: int
    batch: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.num_images < 0 or self.batch < 1:
            raise ValueError(f"num_images is {self.num_images} and batch {self.batch}; expected >= 0 and >= 1")

    def num_steps(self, *, start: int = 0) -> int:
        """Steps that every rank takes from position `start` to the end of the epoch."""
        return num_steps(self.num_images, self.batch, start=start)

    def position_after(self, step: int, *, start: int = 0) -> int:
        """Positions of the epoch that are done after `step`: the `start` with which another run goes on."""
        return min(start + (step + 1) * self.batch, self.num_images)

    def positions(self, epoch: int, step: int, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Positions:
        """The places in the epoch's order that `rank` takes at `step`; the same in every epoch."""
        steps = self.num_steps(start=start)
        if not 0 <= step < steps:
            raise ValueError(f"step {step} of epoch {epoch} does not exist: from position {start} it has {steps} steps")
        first = start + step * self.batch
        low, high = share(self.position_after(step, start=start) - first, rank=rank, world_size=world_size)
        return np.arange(first + low, first + high, dtype=np.int64)

    def indices(self, epoch: int, step: int, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Positions:
        """The images that `rank` takes at `step`, as indices into the dataset."""
        places = self.positions(epoch, step, rank=rank, world_size=world_size, start=start)
        return self.images_at(places, epoch=epoch)

    def images_at(self, positions: Positions, *, epoch: int) -> Positions:
        """The images at some places of the epoch's order."""
        return permute(positions, self.num_images, seed=self.seed, epoch=epoch) if self.shuffle else positions

    def shares(self, epoch: int, *, rank: int = 0, world_size: int = 1, start: int = 0) -> Iterator[Share]:
        """What `rank` loads at each step from position `start` to the end of the epoch.

        The same as `positions` and `indices` step by step, but many steps are worked out at once: the permutation
        costs about as much for thousands of positions as for one.
        """
        steps_at_once = max(1, _POSITIONS_AT_ONCE * world_size // self.batch)
        steps = range(self.num_steps(start=start))
        for first in range(0, len(steps), steps_at_once):
            block = steps[first : first + steps_at_once]
            places = [self.positions(epoch, step, rank=rank, world_size=world_size, start=start) for step in block]
            images = np.split(self.images_at(np.concatenate(places), epoch=epoch), np.cumsum([len(p) for p in places]))
            for step, at, found in zip(block, places, images, strict=False):  # split adds an empty last piece.
                yield Share(epoch, step, at, found)


def num_steps(num_images: int, batch: int, *, start: int = 0) -> int:
    """Global batches from position `start` to the end of an epoch; the last one may be smaller."""
    if not 0 <= start <= num_images:
        raise ValueError(f"position {start} is outside an epoch of {num_images} images")
    return -((start - num_images) // batch)


def share(total: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The piece [low, high) of `total` items that belongs to `rank`; pieces differ in size by at most one."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}; expected 0 to {world_size - 1} for a world size of {world_size}")
    return total * rank // world_size, total * (rank + 1) // world_size


def permute(positions: Positions, n: int, *, seed: int, epoch: int) -> Positions:
    """The images at some positions of a shuffled epoch: a bijection of range(n), one for each seed and epoch.

    A keyed Feistel network over the smallest even-bit power of two that holds n. Values that land outside range(n) go
    through it again until they land inside ("cycle walking"), which keeps it a bijection. Any part of the order can so
    be had without the rest, and it never changes with a version of numpy.

    Args:
        positions: int64 values in range(n).
        n: Number of images.
        seed: Any integer; only its lowest 64 bits count, as for `epoch`.
        epoch: Number of the epoch.

    Returns:
        int64 values in range(n), in the shape of `positions`.
    """
    if positions.size and not (positions.min() >= 0 and positions.max() < n):
        raise ValueError(f"positions {positions.min()} to {positions.max()} are not all in range({n})")
    half = np.uint64(_half_bits(n))
    keys = _round_keys(seed, epoch)
    values = positions.ravel().astype(np.uint64)
    outside = np.arange(values.size)
    while outside.size:
        walked = _feistel(values[outside], half, keys)
        values[outside] = walked
        outside = outside[walked >= np.uint64(n)]
    return values.astype(np.int64).reshape(positions.shape)


def _half_bits(n: int) -> int:
    return (max((n - 1).bit_length(), _SMALLEST_BITS) + 1) // 2


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    key = np.array([seed & _MASK], np.uint64)
    key = _mix(_mix(key) + np.array([epoch & _MASK], np.uint64))
    numbers = np.arange(1, _ROUNDS + 1, dtype=np.uint64)
    return list(_mix(key + numbers * np.uint64(_GOLDEN)))


def _feistel(values: NDArray[np.uint64], half: np.uint64, keys: list[np.uint64]) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & mask)
    return (left << half) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the value, modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
