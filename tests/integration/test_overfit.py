"""Every family learns 16 synthetic boards by heart, from scratch; a classifier its class folders."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import sightline
from sightline.config import Config, load_config
from sightline.data.synth.shapes import CLASSES, render_shape
from sightline.models.factory import CLASSIFIERS, FAMILIES

QUICK = ("nano", "resnet18")
SETTINGS: dict[str, dict[str, Any]] = {
    "nano": {"size": 160, "epochs": 25},
    "ssdlite": {"size": 160, "epochs": 40, "lr": 2e-3},
    "fasterrcnn-mobilenet": {"size": 256, "epochs": 32, "batch": 2},
    "fasterrcnn-mobilenet-320": {"size": 256, "epochs": 32, "batch": 2},
    "fasterrcnn-mobilenetv2": {"size": 192, "epochs": 24, "batch": 2},
    "fasterrcnn-resnet50": {"size": 128, "epochs": 20, "batch": 2},
    "fasterrcnn-resnet50-v2": {"size": 128, "epochs": 36, "batch": 2, "threads": 0, "precision": "auto"},
    "retinanet": {"size": 128, "epochs": 44, "batch": 2},
    "fcos": {"size": 128, "epochs": 36, "batch": 2},
    "resnet18": {"size": 64, "epochs": 10},
    "resnet50": {"size": 64, "epochs": 15},
    "mobilenet": {"size": 64, "epochs": 30},
}
"""What is quick on one core; a family without a line is trained at its usual size."""


def families(*, classify: bool) -> list[Any]:
    chosen = [name for name in FAMILIES if (name in CLASSIFIERS) is classify]
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in chosen]


@pytest.fixture(scope="module")
def config() -> Config:
    """All images train, none is changed."""
    return load_config(
        flags={
            "ingest": {"default_split": "train=1", "workers": 1},
            "augment": {"hflip": 0.0},
            "tracking": {"enabled": False},
        }
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, config: Config) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("boards", "boards", images=16, size=160, workspace=place, config=config)
    folders = write_class_folders(tmp_path_factory.mktemp("folders"), images=24)
    sightline.ingest(folders, "folders", workspace=place, config=config)
    return place


def write_class_folders(root: Path, *, images: int) -> Path:
    for index in range(images):
        shape = render_shape(seed=0, index=index)
        assert shape.label is not None
        folder = root / CLASSES[shape.label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(shape.image).save(folder / f"{index}.png")
    return root


def learn(family: str, dataset: str, workspace: Path, config: Config) -> str:
    """Train, and name the run. Scored once, at the end: what is asked is that the last weights are good."""
    settings = {"epochs": 50, "threads": 1, "precision": "float32", **SETTINGS.get(family, {})}
    run = sightline.train(
        dataset,
        workspace=workspace,
        config=config,
        model=family,
        weights="none",
        hold_back=0.0,
        evaluate_every=settings["epochs"],
        **settings,
    )
    return run.name


@pytest.mark.parametrize("family", families(classify=False))
def test_boards_are_learned_by_heart(family: str, workspace: Path, config: Config) -> None:
    run = learn(family, "boards", workspace, config)
    assert sightline.evaluate(run, "boards", split="train", workspace=workspace).map50 >= 0.9


@pytest.mark.parametrize("family", families(classify=True))
def test_class_folders_are_learned_by_heart(family: str, workspace: Path, config: Config) -> None:
    run = learn(family, "folders", workspace, config)
    assert sightline.evaluate(run, "folders", split="train", workspace=workspace).accuracy == 1.0
