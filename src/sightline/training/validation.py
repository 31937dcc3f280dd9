"""Which images train a model, and which choose its best epoch and its threshold."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass

from sightline.config import TrainConfig
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError


@dataclass(frozen=True)
class Parts:
    """A dataset as a run uses it.

    Attributes:
        reason: Where the validation images come from, in words.
    """

    train: Dataset
    validation: Dataset
    reason: str


def divide(dataset: Dataset, config: TrainConfig) -> Parts:
    """The splits `train` and `val`; without a `val`, a share of `train` is held back for it.

    `test` never chooses anything: it would no longer say how the model does on images that had no say in it.
    """
    if "train" not in dataset.info.splits:
        raise ConfigError(
            f"dataset {dataset.info.name!r} has no split 'train', only {', '.join(dataset.info.splits)}: ingest it "
            "with --split train=0.8,val=0.2"
        )
    train = dataset.select("train")
    if "val" in dataset.info.splits:
        return Parts(train, dataset.select("val"), "split 'val'")
    held, rest = _held_back(train, config.hold_back)
    if not held:
        return Parts(train, train, "the training images themselves")
    return Parts(train.take(rest), train.take(held), f"{len(held):,} images held back from 'train'")


def _held_back(train: Dataset, share: float) -> tuple[list[int], list[int]]:
    """Positions of the share, to the nearest image, and of the rest.

    Images of identical bytes stay together. The hash of an image's id, the smallest of a group, decides which are held
    back. A group that is larger than what is still missing is passed over; if all are, the smallest is held back.
    """
    groups = defaultdict[bytes, list[int]](list)
    for position, key in enumerate(train.content_keys()):
        groups[key].append(position)
    rank = [hashlib.sha256(train.image_id(position).encode()).digest() for position in range(len(train))]
    ordered = sorted(groups.values(), key=lambda group: min(rank[position] for position in group))
    wanted, held = round(len(train) * share), set[int]()
    for group in ordered:
        if len(held) + len(group) <= wanted:
            held.update(group)
    if wanted and not held and len(ordered) > 1:
        smallest = min(ordered, key=len)
        held.update(smallest)
    return sorted(held), [position for position in range(len(train)) if position not in held]
