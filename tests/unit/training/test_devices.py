"""Devices and backends, decided before workers start; GPUs are numbers here."""

from pathlib import Path

import pytest
import torch

import sightline
from sightline.config import load_config
from sightline.errors import ConfigError
from sightline.training import precision
from sightline.training.devices import backend_for, device_type, plan_devices
from sightline.training.placement import local_placement
from sightline.training.precision import pick_device, place_worker
from sightline.training.resolve import resolve_training

NCCL, SHARED = "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    ("requested", "workers", "gpus", "devices", "backend"),
    [
        ("auto", 1, 0, ["cpu"], "gloo"),
        ("auto", 2, 0, ["cpu", "cpu"], "gloo"),
        ("cpu", 2, 4, ["cpu", "cpu"], "gloo"),
        ("auto", 1, 1, ["cuda:0"], NCCL),
        ("cuda", 2, 2, ["cuda:0", "cuda:1"], NCCL),
        ("auto", 2, 4, ["cuda:0", "cuda:1"], NCCL),
        ("auto", 2, 1, ["cuda:0", "cuda:0"], SHARED),
        ("cuda", 5, 2, ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"], SHARED),
    ],
)
def test_devices_of_workers(requested: str, workers: int, gpus: int, devices: list[str], backend: str) -> None:
    plan = plan_devices(requested, workers=workers, gpus=gpus)
    assert (list(plan.devices), plan.backend, plan.shared) == (devices, backend, backend == SHARED)
    assert (f"--workers {gpus}" in plan.note) == plan.shared


def test_nccl_never_has_two_ranks_on_one_gpu() -> None:
    for workers in range(1, 9):
        for gpus in range(1, 9):
            plan = plan_devices("auto", workers=workers, gpus=gpus)
            assert "nccl" not in plan.backend or len(set(plan.devices)) == workers


def test_backends() -> None:
    assert backend_for("cpu", shared=False) == backend_for("cpu", shared=True) == "gloo"
    assert backend_for("cuda", shared=False) == NCCL
    assert backend_for("cuda", shared=True) == SHARED


def test_workers_of_this_machine_decide_on_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "num_gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    assert place_worker("auto", local_rank=1, workers_here=2) == (torch.device("cuda:0"), SHARED)
    assert place_worker("auto", local_rank=0, workers_here=1) == (torch.device("cuda:0"), NCCL)
    assert place_worker("cpu", local_rank=1, workers_here=2) == (torch.device("cpu"), "gloo")


def test_a_gpu_that_is_not_there() -> None:
    for decide in (lambda: device_type("cuda", gpus=0), lambda: plan_devices("cuda", workers=2, gpus=0)):
        with pytest.raises(ConfigError, match=r"train.device is 'cuda', and torch finds no GPU .* give 'cpu'"):
            decide()


@without_gpu
def test_a_setting_that_wants_a_gpu_where_there_is_none(tmp_path: Path) -> None:
    config = load_config(flags={"train": {"device": "cuda"}})
    sightline.synth("shapes", "shapes", images=4, workspace=tmp_path)
    for decide in (
        lambda: pick_device("cuda", index=0),
        lambda: local_placement(config, workers=2, launcher="local"),
        lambda: sightline.train("shapes", config=config, workspace=tmp_path),
    ):
        with pytest.raises(ConfigError, match="torch finds no GPU"):
            decide()


@without_gpu
def test_gpus_of_a_ray_cluster_need_none_here(tmp_path: Path) -> None:
    sightline.synth("shapes", "shapes", images=4, workspace=tmp_path)
    config = load_config(flags={"train": {"device": "cuda"}, "workers": {"address": "elsewhere:6379"}})
    resolved, _ = resolve_training(config, sightline.open_dataset("shapes", workspace=tmp_path))
    assert resolved.train.device == "cuda"
