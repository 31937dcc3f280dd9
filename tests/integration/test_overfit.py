"""Every family learns 16 synthetic boards by heart, from scratch; a classifier its class folders."""

from pathlib import Path

import pytest
from overfitted import dataset_of, learn

import sightline
from families import trained_families


@pytest.mark.parametrize("family", trained_families(classify=False))
def test_boards_are_learned_by_heart(family: str, overfitted: Path) -> None:
    run = learn(family, overfitted)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=overfitted).map50 >= 0.9


@pytest.mark.parametrize("family", trained_families(classify=True))
def test_class_folders_are_learned_by_heart(family: str, overfitted: Path) -> None:
    run = learn(family, overfitted)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=overfitted).accuracy == 1.0
