"""Models of every family that know 16 synthetic boards by heart, or their class folders: a minute or more of training.

What is in the workspace already is not trained again; `SIGHTLINE_OVERFITTED` names one to keep. Also a command, to
train ahead: `python bench/overfitted.py FAMILY …`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image

import sightline
from sightline.config import Config, load_config
from sightline.data.synth.shapes import CLASSES, render_shape
from sightline.models.factory import CLASSIFIERS

KEPT = "SIGHTLINE_OVERFITTED"
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
    "yolov8n": {"size": 160, "epochs": 60, "lr": 2e-3},
    "yolo11n": {"size": 160, "epochs": 60, "lr": 2e-3},
    "resnet18": {"size": 64, "epochs": 10},
    "resnet50": {"size": 64, "epochs": 15},
    "mobilenet": {"size": 64, "epochs": 30},
}
"""What is quick on one core; a family without a line is trained at its usual size."""


def config() -> Config:
    """All images train, none is changed."""
    return load_config(
        flags={
            "ingest": {"default_split": "train=1", "workers": 1},
            "augment": {"hflip": 0.0},
            "tracking": {"enabled": False},
        }
    )


def kept_workspace(otherwise: Path) -> Path:
    """The workspace that is kept between runs if one is named, else the given one; with both datasets in it."""
    place = Path(os.environ.get(KEPT) or otherwise)
    if not (place / "datasets" / "boards").is_dir():
        sightline.synth("boards", "boards", images=16, size=160, workspace=place, config=config())
    if not (place / "datasets" / "folders").is_dir():
        folders = write_class_folders(place / "class-folders", images=24)
        sightline.ingest(folders, "folders", workspace=place, config=config())
    return place


def write_class_folders(root: Path, *, images: int) -> Path:
    """Images of single shapes, a folder a class."""
    for index in range(images):
        shape = render_shape(seed=0, index=index)
        assert shape.label is not None
        folder = root / CLASSES[shape.label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(shape.image).save(folder / f"{index}.png")
    return root


def dataset_of(family: str) -> str:
    """What a family learns."""
    return "folders" if family in CLASSIFIERS else "boards"


def learn(family: str, workspace: Path) -> str:
    """Train, and name the run. Scored once, at the end: what is asked is that the last weights are good."""
    settings = {"epochs": 50, "threads": 1, "precision": "float32", **SETTINGS.get(family, {})}
    run = sightline.train(
        dataset_of(family),
        workspace=workspace,
        config=config(),
        model=family,
        weights="none",
        hold_back=0.0,
        evaluate_every=settings["epochs"],
        **settings,
    )
    return run.name


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(wanted, learn(wanted, kept_workspace(Path("sightline-overfitted"))), flush=True)
