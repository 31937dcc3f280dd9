"""What a worker does with the settings it is given: none is ignored."""

import multiprocessing
import threading
from typing import Any

import pytest
import torch

import sightline
from sightline.config import Config, load_config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, ImageError
from sightline.models.factory import make_model
from sightline.training.collective import SingleProcess
from sightline.training.context import WorkerContext
from sightline.training.job import Job, make_trainer
from sightline.training.loop import Trainer
from sightline.training.messages import Message, Origin, StepCompleted
from sightline.training.validation import divide
from support.training import InMemory


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, size=64, workspace=place)
    return sightline.open_dataset("shapes", workspace=place)


def trainer_of(dataset: Dataset, send: Any = lambda message: None, **sections: dict[str, object]) -> Trainer:
    train = {"model": "nano", "size": 64, "epochs": 1, "batch": 4, "lr": 0.001, "optimizer": "sgd", "weight_decay": 0.0}
    config: Config = load_config(flags={"train": train | {"precision": "float32"}, **sections})
    torch.manual_seed(0)
    model = make_model("nano", num_classes=len(dataset.classes), size=64)
    context = WorkerContext(Origin("run"), InMemory(), InMemory(), send)
    return make_trainer(model, Job(divide(dataset, config.train), config, None), SingleProcess(), context)


@pytest.mark.parametrize(("loader", "threads", "processes"), [({"threads": 3}, 3, 0), ({"processes": 2}, 0, 2)])
def test_threads_and_processes_of_the_loader_are_those_asked_for(
    shapes: Dataset, loader: dict[str, object], threads: int, processes: int
) -> None:
    seen: list[tuple[int, int]] = []

    def send(message: Message) -> None:
        if isinstance(message, StepCompleted):
            named = sum(thread.name.startswith("sightline-loader") for thread in threading.enumerate())
            seen.append((named, len(multiprocessing.active_children())))

    trainer_of(shapes, send, loader=loader).run()
    assert max(seen) == (threads, processes)


def test_images_that_are_too_large_are_refused_in_training_and_evaluation(shapes: Dataset) -> None:
    trainer = trainer_of(shapes, decode={"max_pixels": 1000})
    with pytest.raises(ImageError, match="64 x 64"):
        trainer.run()
    with pytest.raises(ImageError, match="64 x 64"):
        trainer.evaluate(trainer.model)


def test_the_batch_is_set_in_one_place_only() -> None:
    with pytest.raises(ConfigError, match=r"'loader\.batch' does not exist"):
        load_config(sets=("loader.batch=16",))
