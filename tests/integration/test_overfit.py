"""Every family learns 16 synthetic boards by heart, from scratch; a classifier its class folders."""

from pathlib import Path
from typing import Any

import pytest
from overfitted import dataset_of, learn

import sightline
from families import TESTED
from sightline.models.factory import CLASSIFIERS

QUICK = ("nano", "resnet18")


def families(*, classify: bool) -> list[Any]:
    chosen = [name for name in TESTED if (name in CLASSIFIERS) is classify]
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in chosen]


@pytest.mark.parametrize("family", families(classify=False))
def test_boards_are_learned_by_heart(family: str, overfitted: Path) -> None:
    run = learn(family, overfitted)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=overfitted).map50 >= 0.9


@pytest.mark.parametrize("family", families(classify=True))
def test_class_folders_are_learned_by_heart(family: str, overfitted: Path) -> None:
    run = learn(family, overfitted)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=overfitted).accuracy == 1.0
