"""Training on a Ray cluster of several nodes on this machine."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline
from sightline.config import Config, load_config
from sightline.errors import ConfigError
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.loop import Progress, Stopped

ray_cluster = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own.


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Three nodes of one CPU each, and none on the head."""
    cluster = ray_cluster.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def settings(address: str, **train: Any) -> Config:
    given = {"model": "nano", "size": 64, "epochs": 6, "batch": 4, "precision": "float32", "threads": 1, **train}
    workers = {"count": 2, "address": address, "verify": True}
    return load_config(
        flags={"train": given, "workers": workers, "augment": {"scale": 0.2}, "tracking": {"enabled": True}}
    )


def weights(workspace: Path, name: str) -> dict[str, torch.Tensor]:
    found = CheckpointDirectory(workspace / "runs" / name / "checkpoints").load_latest()
    assert found is not None
    return found.weights


def ray_workers() -> list[int]:
    listing = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listing.splitlines() if "ray::RayTrainWorker" in line]


def test_the_same_as_processes_on_this_machine_though_a_worker_is_lost(workspace: Path, address: str) -> None:
    config = settings(address)
    killed: list[int] = []

    def kill_one(progress: Progress, *_: Any) -> None:
        if progress.step == 6 and not killed:
            killed.append(ray_workers()[-1])
            os.kill(killed[0], signal.SIGKILL)

    notes: list[str] = []
    result = sightline.train(
        "shapes", workspace=workspace, config=config, name="ray", on_step=kill_one, on_note=notes.append
    )
    assert killed
    assert any("a worker was lost at step" in note for note in notes)
    assert any("verified epoch 6" in note for note in notes)
    assert result.epochs == 6
    local = config.model_copy(update={"workers": config.workers.model_copy(update={"address": None})})
    sightline.train("shapes", workspace=workspace, config=local, name="processes")
    ours, theirs = weights(workspace, "ray"), weights(workspace, "processes")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    machine = json.loads((workspace / "runs" / "ray" / "machine.json").read_text())["placement"]
    assert machine == {"nodes": 2, "workers": 2, "threads": 1, "devices": ["cpu"], "backend": "gloo", "launcher": "ray"}
    tracked = next(run for run in sightline.list_runs(workspace=workspace) if run.name == "ray")
    assert tracked.status == "finished"


def test_a_wish_to_stop(workspace: Path, address: str) -> None:
    began = time.monotonic()
    steps: list[int] = []

    def on_step(progress: Progress, *_: Any) -> None:
        steps.append(progress.step)

    with pytest.raises(Stopped):
        sightline.train(
            "shapes",
            workspace=workspace,
            config=settings(address, epochs=2000),
            name="stopped",
            on_step=on_step,
            should_stop=lambda: bool(steps),
        )
    assert time.monotonic() - began < 200
    assert weights(workspace, "stopped")


def test_a_cluster_that_is_too_small_is_an_error_at_once(workspace: Path, address: str) -> None:
    config = settings(address)
    config = config.model_copy(update={"workers": config.workers.model_copy(update={"count": 9})})
    with pytest.raises(
        ConfigError, match="the Ray cluster has 3 CPUs and 0 GPUs, room for 3 workers of 1 CPUs and 0 GPUs; 9 are"
    ):
        sightline.train("shapes", workspace=workspace, config=config, name="large")
