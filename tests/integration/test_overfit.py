"""Every family learns 16 synthetic boards by heart, from scratch; a classifier its class folders."""

import sys
from pathlib import Path
from typing import Any

import pytest

import sightline
from sightline.models.factory import CLASSIFIERS, FAMILIES

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from overfitted import dataset_of, kept_workspace, learn

QUICK = ("nano", "resnet18")


def families(*, classify: bool) -> list[Any]:
    chosen = [name for name in FAMILIES if (name in CLASSIFIERS) is classify]
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in chosen]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_workspace(tmp_path_factory.mktemp("overfitted"))


@pytest.mark.parametrize("family", families(classify=False))
def test_boards_are_learned_by_heart(family: str, workspace: Path) -> None:
    run = learn(family, workspace)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=workspace).map50 >= 0.9


@pytest.mark.parametrize("family", families(classify=True))
def test_class_folders_are_learned_by_heart(family: str, workspace: Path) -> None:
    run = learn(family, workspace)
    assert sightline.evaluate(run, dataset_of(family), split="train", workspace=workspace).accuracy == 1.0
