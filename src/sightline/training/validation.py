"""Which images train a model, and which choose its best epoch and its threshold."""

import hashlib
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
    """Positions of the share, to the nearest image, and of the rest; the hash of an image's id decides, not chance."""
    order = sorted(range(len(train)), key=lambda index: hashlib.sha256(train.image_id(index).encode()).digest())
    held = order[: round(len(train) * share)]
    return sorted(held), sorted(order[len(held) :])
