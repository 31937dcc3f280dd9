"""Which images train, and which choose: never the test images, and always the same ones."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sightline
from sightline.config import Config, TrainConfig
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError
from sightline.training.validation import divide


def make(place: Path, split: str, images: int = 40) -> Dataset:
    config = Config.model_validate({"ingest": {"split": split}})
    sightline.synth("shapes", str(place), images=images, size=48, config=config)
    return Dataset.open(place)


def ids(dataset: Dataset) -> list[str]:
    return [dataset.image_id(index) for index in range(len(dataset))]


def test_val_chooses_where_there_is_one(tmp_path: Path) -> None:
    dataset = make(tmp_path / "d", "train=0.6,val=0.2,test=0.2")
    parts = divide(dataset, TrainConfig())
    assert ids(parts.train) == ids(dataset.select("train"))
    assert ids(parts.validation) == ids(dataset.select("val"))


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_without_val_a_share_of_train_is_held_back_and_test_is_not_touched(tmp_path: Path, share: float) -> None:
    dataset = make(tmp_path / "d", "train=0.8,test=0.2")
    parts = divide(dataset, TrainConfig(hold_back=share))
    train = ids(dataset.select("train"))
    assert len(parts.validation) == round(share * len(train))
    assert sorted(ids(parts.train) + ids(parts.validation)) == sorted(train)
    assert ids(divide(Dataset.open(tmp_path / "d"), TrainConfig(hold_back=share)).validation) == ids(parts.validation)
    assert f"{len(parts.validation)} images held back" in parts.reason
    assert {sample.image_id for sample in parts.validation} == set(ids(parts.validation))


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_identical_images_stay_on_one_side(tmp_path: Path, share: float) -> None:
    """Twelve images, each under two or three names, as video frames and re-exports have them."""
    dataset = with_copies(tmp_path, [2 + number % 2 for number in range(12)])
    parts = divide(dataset, TrainConfig(hold_back=share))
    train, held = ({bytes(sample.image) for sample in part} for part in (parts.train, parts.validation))
    assert held
    assert not held & train
    assert abs(len(parts.validation) - share * len(dataset)) <= 3
    assert len(parts.train) + len(parts.validation) == len(dataset)


def test_copies_that_are_most_of_the_images_are_not_held_back(tmp_path: Path) -> None:
    parts = divide(with_copies(tmp_path, [20, 2, 2]), TrainConfig(hold_back=0.05))
    assert len(parts.validation) == 2


def test_copies_of_one_image_alone_score_the_training_images(tmp_path: Path) -> None:
    parts = divide(with_copies(tmp_path, [10]), TrainConfig(hold_back=0.2))
    assert (len(parts.train), len(parts.validation), parts.reason) == (10, 10, "the training images themselves")


def with_copies(place: Path, counts: list[int]) -> Dataset:
    """A dataset of class folders in which image n lies under `counts[n]` names; all of it is `train`."""
    for number, count in enumerate(counts):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
        for copy in range(count):
            file = place / "source" / "ab"[number % 2] / f"{copy}-{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    sightline.ingest(place / "source", "copies", workspace=place, format="folder", split="train=1", workers=1)
    return sightline.open_dataset("copies", workspace=place)


def test_nothing_held_back_scores_the_training_images(tmp_path: Path) -> None:
    dataset = make(tmp_path / "d", "train=1")
    parts = divide(dataset, TrainConfig(hold_back=0.0))
    assert ids(parts.train) == ids(parts.validation) == ids(dataset)


def test_a_dataset_without_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no split 'train', only test"):
        divide(make(tmp_path / "d", "test=1"), TrainConfig())
