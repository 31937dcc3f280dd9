"""Training on a Ray cluster of several nodes on this machine; `test_many_workers.py` has what both launchers share."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_nodes import BlindNode, RayCluster

import sightline
from programs import need_mounts
from sightline.config import Config, load_config
from sightline.errors import ConfigError, Stopped
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.messages import RunProgress

pytest.importorskip("ray")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own.


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


def settings(address: str | None, **train: Any) -> Config:
    given = {"model": "nano", "size": 64, "epochs": 6, "batch": 4, "precision": "float32", "threads": 1, **train}
    workers = {"count": 2, "address": address, "verify": True}
    return load_config(
        flags={"train": given, "workers": workers, "augment": {"scale": 0.2}, "tracking": {"enabled": True}}
    )


def weights(workspace: Path, name: str) -> dict[str, torch.Tensor]:
    found = CheckpointDirectory(workspace / "runs" / name / "checkpoints").load_latest()
    assert found is not None
    return found.weights


@pytest.fixture(scope="module")
def undisturbed(workspace: Path) -> dict[str, torch.Tensor]:
    """Processes on this machine."""
    sightline.train("shapes", workspace=workspace, config=settings(None), name="processes")
    return weights(workspace, "processes")


def once_at(step: int, act: Callable[[], None]) -> Callable[..., None]:
    """For `on_step`: does something the first time that a step is reached."""
    done: list[bool] = []

    def on_step(progress: RunProgress, *_: Any) -> None:
        if progress.step >= step and not done:
            done.append(True)
            act()

    return on_step


def kill_one(cluster: RayCluster) -> None:
    os.kill(cluster.workers()[-1], signal.SIGKILL)


def test_a_lost_worker(workspace: Path, cluster: RayCluster, undisturbed: dict[str, torch.Tensor]) -> None:
    """It ends with the weights of processes on this machine that lost nobody."""
    notes: list[str] = []
    result = sightline.train(
        "shapes",
        workspace=workspace,
        config=settings(cluster.address),
        name="ray",
        on_step=once_at(6, lambda: kill_one(cluster)),
        on_note=notes.append,
    )
    assert any("a worker was lost at step" in note for note in notes)
    assert any("verified epoch 6" in note for note in notes)
    assert result.epochs == 6
    ours = weights(workspace, "ray")
    assert all(torch.equal(ours[name], undisturbed[name]) for name in undisturbed)
    machine = json.loads((workspace / "runs" / "ray" / "machine.json").read_text())["placement"]
    assert machine == {"nodes": 2, "workers": 2, "threads": 1, "devices": ["cpu"], "backend": "gloo", "launcher": "ray"}
    tracked = next(run for run in sightline.list_runs(workspace=workspace) if run.name == "ray")
    assert tracked.status == "finished"


@pytest.mark.slow
def test_a_lost_node(workspace: Path, cluster: RayCluster, undisturbed: dict[str, torch.Tensor]) -> None:
    notes: list[str] = []
    sightline.train(
        "shapes",
        workspace=workspace,
        config=settings(cluster.address),
        name="node",
        on_step=once_at(6, lambda: cluster.replace_node_of(cluster.workers()[-1])),
        on_note=notes.append,
    )
    assert any("a worker was lost at step" in note for note in notes)
    ours = weights(workspace, "node")
    assert all(torch.equal(ours[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.slow
def test_a_node_that_does_not_see_the_workspace(
    workspace: Path, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Both workers are there: images, weights and checkpoints go by way of the driver's node."""
    need_mounts()
    notes: list[str] = []
    with RayCluster(0) as cluster, BlindNode(cluster.address, workspace, num_cpus=2):
        cluster.wait_for_cpus(2)
        sightline.train(
            "shapes", workspace=workspace, config=settings(cluster.address), name="blind", on_note=notes.append
        )
    assert any("verified epoch 6" in note for note in notes)
    ours = weights(workspace, "blind")
    assert all(torch.equal(ours[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "model", "score"), [("voc", "fasterrcnn-mobilenet-320", "val/map50"), ("classes", "resnet18", None)]
)
def test_a_dataset_of_ones_own(
    workspace: Path, cluster: RayCluster, tmp_path: Path, dataset: str, model: str, score: str | None
) -> None:
    """VOC files train Faster R-CNN, class folders a classifier; each loses a worker, and MLflow has how it ended."""
    if dataset == "voc":
        sightline.export_dataset("shapes", tmp_path / "voc", format="voc", workspace=workspace)
        sightline.ingest(tmp_path / "voc", dataset, workspace=workspace, format="voc")
    else:
        sightline.synth("shape-classes", dataset, images=20, seed=1, workspace=workspace)
    notes: list[str] = []
    config = settings(cluster.address, model=model, size=128, weights="none", checkpoint_every_s=5)
    sightline.train(
        dataset,
        workspace=workspace,
        config=config,
        name=f"own-{dataset}",
        on_step=once_at(6, lambda: kill_one(cluster)),
        on_note=notes.append,
    )
    assert any("a worker was lost at step" in note for note in notes)
    run = next(run for run in sightline.list_runs(workspace=workspace) if run.name == f"own-{dataset}")
    assert (run.status, run.workers, run.epochs) == ("finished", 2, (6, 6))
    assert run.metrics[score or "val/accuracy"] == pytest.approx(run.metrics["val/score"])
    assert run.machine["machine.launcher"] == "ray"
    assert run.machine["machine.nodes"] == "2"


def test_a_wish_to_stop(workspace: Path, cluster: RayCluster) -> None:
    began = time.monotonic()
    steps: list[int] = []

    def on_step(progress: RunProgress, *_: Any) -> None:
        steps.append(progress.step)

    with pytest.raises(Stopped):
        sightline.train(
            "shapes",
            workspace=workspace,
            config=settings(cluster.address, epochs=2000),
            name="stopped",
            on_step=on_step,
            should_stop=lambda: bool(steps),
        )
    assert time.monotonic() - began < 200
    assert weights(workspace, "stopped")


def test_a_cluster_that_is_too_small_is_an_error_at_once(workspace: Path, cluster: RayCluster) -> None:
    config = settings(cluster.address)
    config = config.model_copy(update={"workers": config.workers.model_copy(update={"count": 9})})
    with pytest.raises(
        ConfigError, match="the Ray cluster has 3 CPUs and 0 GPUs, room for 3 workers of 1 CPUs and 0 GPUs; 9 are"
    ):
        sightline.train("shapes", workspace=workspace, config=config, name="large")
