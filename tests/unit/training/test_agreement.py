"""What workers agree on before they train: the numbers they compute in, the settings, the dataset."""

from pathlib import Path
from typing import Any

import pytest
import torch
from together import Together, run_together

import sightline
from sightline.config import Config, TrainConfig, load_config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, TrainingError
from sightline.training import job as job_module
from sightline.training.collective import SingleProcess
from sightline.training.job import agree_on_precision
from sightline.training.launch import _local_workers, _of_rank_0

CPU = torch.device("cpu")


class Peers(SingleProcess):
    """A worker whose peers answer as given."""

    def __init__(self, *others: Any) -> None:
        self._others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *self._others]


@pytest.mark.parametrize(
    ("own", "others", "agreed"),
    [
        ("bfloat16", ["bfloat16", "bfloat16"], "bfloat16"),
        ("bfloat16", ["float32"], "float32"),
        ("float32", ["bfloat16"], "float32"),
        ("float32", [], "float32"),
    ],
)
def test_precision(own: str, others: list[str], agreed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is what all workers' hardware is quick in, wherever the driver runs."""
    monkeypatch.setattr(job_module, "pick_precision", lambda *_, **__: own)
    assert agree_on_precision(TrainConfig(model="nano"), CPU, Peers(*others)) == agreed


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    place: Path = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=4, seed=1, workspace=place)
    return sightline.open_dataset("shapes", workspace=place)


def config(lr: float = 0.5) -> Config:
    return load_config(flags={"train": {"lr": lr}})


def test_all_workers_take_the_settings_of_rank_0(dataset: Dataset) -> None:
    """Each has resolved what was left open by what its own machine has."""

    def work(collective: Together) -> float | None:
        own = config(lr=0.1 * (collective.rank + 1))
        return _of_rank_0(own, dataset, collective, place="cpu over gloo").train.lr

    assert run_together(3, work) == [0.1, 0.1, 0.1]


def test_another_dataset_on_one_worker_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    sightline.synth("shapes", "shapes", images=5, seed=2, workspace=tmp_path)
    other = sightline.open_dataset("shapes", workspace=tmp_path)

    def work(collective: Together) -> None:
        _of_rank_0(config(), other if collective.rank == 1 else dataset, collective, place="cpu over gloo")

    with pytest.raises(TrainingError, match=r"the content of the dataset must be the same .* rank 1: shapes"):
        run_together(2, work)


def test_another_backend_on_one_worker_is_refused(dataset: Dataset) -> None:
    """The first sum of gradients would wait until a timeout."""

    def work(collective: Together) -> None:
        _of_rank_0(config(), dataset, collective, place="cuda over nccl" if collective.rank else "cpu over gloo")

    with pytest.raises(TrainingError, match=r"the device and backend must be the same .* rank 2: cuda over nccl"):
        run_together(3, work)


@pytest.mark.parametrize(
    ("environment", "workers"),
    [
        ({}, (1, 0)),
        ({"LOCAL_RANK": "0"}, (1, 0)),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, (4, 3)),
        ({"LOCAL_RANK": "1"}, None),
    ],
)
def test_workers_of_this_machine(environment: dict[str, str], workers: tuple[int, int] | None) -> None:
    """Other launchers than torchrun may leave one of the variables out."""
    if workers is None:
        with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE, the number of workers on this machine, is not set"):
            _local_workers(environment)
    else:
        assert _local_workers(environment) == workers
