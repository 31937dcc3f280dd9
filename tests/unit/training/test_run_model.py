"""A run that was stopped or killed has a usable model, and a run that has ended can be extended."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import sightline
from failing_disk import ALWAYS, FailingDisk
from sightline.config import Config, TrackingConfig, load_config
from sightline.data.dataset import Dataset
from sightline.data.manifest import write_manifest
from sightline.errors import ConfigError, NotFoundError, Stopped, StorageError
from sightline.models.bundle import Bundle
from sightline.training.callbacks import Callbacks
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.identity import choose_name, run_name
from sightline.training.resolve import resolve_training
from sightline.training.run_model import make_finder
from sightline.workspace import Workspace
from support.training import train_run


def settings(**train: object) -> Config:
    small = {"model": "nano", "size": 64, "epochs": 2, "batch": 8, "threads": 1, "checkpoint_every_s": 1e9}
    return load_config(flags={"train": small | train, "tracking": {"enabled": False}})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """With a run that was stopped in its third epoch, and one that has ended; tests copy them."""
    place = Workspace(tmp_path_factory.mktemp("workspace"))
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place.root)
    dataset = sightline.open_dataset("shapes", workspace=place.root)
    steps: list[int] = []
    stopping = Callbacks(on_step=lambda progress, *_: steps.append(progress.epoch), should_stop=lambda: steps[-1] == 2)
    with pytest.raises(Stopped):
        train_run(dataset, settings(epochs=9), place.runs / "stopped", callbacks=stopping)
    train_run(dataset, settings(), place.runs / "ended")
    return place


@pytest.fixture
def shapes(workspace: Workspace) -> Dataset:
    return sightline.open_dataset("shapes", workspace=workspace.root)


def find(workspace: Workspace, run: str) -> tuple[Bundle, list[str]]:
    notes: list[str] = []
    return make_finder(workspace, TrackingConfig(enabled=False), notes.append).find(run), notes


def test_a_stopped_run_has_its_best_model_so_far(workspace: Workspace) -> None:
    run = workspace.runs / "stopped"
    shutil.rmtree(run / "model", ignore_errors=True)
    best = CheckpointDirectory(run / "best").load_latest()
    assert best is not None
    for reference in ("stopped", str(run)):
        bundle, notes = find(workspace, reference)
        epoch = best.progress["epoch"]
        assert notes == [f"run 'stopped' is unfinished (epoch 2 of 9): its best model so far is of epoch {epoch}"]
        assert bundle.info.metrics["score"] == best.progress["best_score"]
        assert bundle.info.run is not None
        assert bundle.info.run.name == "stopped"
        for name, tensor in bundle.load().state_dict().items():
            assert torch.equal(tensor, (best.ema or best.weights)[name])
    found = sightline.evaluate("stopped", "shapes", split="val", workspace=workspace.root)
    assert found.num_images > 0


def test_an_ended_run_says_nothing_and_keeps_its_bundle(workspace: Workspace) -> None:
    written = (workspace.runs / "ended" / "model" / "manifest.json").stat()
    bundle, notes = find(workspace, "ended")
    assert notes == []
    assert (bundle.path / "manifest.json").stat() == written


def test_a_model_of_an_earlier_stop_is_replaced_by_a_better_one(workspace: Workspace, tmp_path: Path) -> None:
    """The run went on after a stop at which its model was used, found better weights, and was killed."""
    copied = Workspace(tmp_path)
    shutil.copytree(workspace.runs / "stopped", copied.runs / "run")
    earlier, _ = find(copied, "run")
    (best,) = (copied.runs / "run" / "best").glob("step-*")
    progress = json.loads((best / "progress.json").read_text())
    progress["step"] += 100
    progress["history"][-1] |= {"step": progress["step"], "score": 0.99}
    (best / "manifest.json").unlink()
    (best / "progress.json").write_text(json.dumps(progress))
    write_manifest(best)
    later, _ = find(copied, "run")
    assert earlier.info.metrics["score"] != later.info.metrics["score"] == 0.99


def test_a_run_without_a_score_has_no_model(workspace: Workspace, tmp_path: Path) -> None:
    copied = Workspace(tmp_path)
    shutil.copytree(workspace.runs / "stopped", copied.runs / "young", ignore=shutil.ignore_patterns("best", "model"))
    with pytest.raises(NotFoundError, match="run 'young' has no model yet"):
        find(copied, "young")


@pytest.mark.usefixtures("impatient")
def test_the_best_model_on_a_disk_that_fails(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are not damaged, so nobody is told to train anew."""
    copied = Workspace(tmp_path)
    shutil.copytree(workspace.runs / "stopped", copied.runs / "run", ignore=shutil.ignore_patterns("model"))
    disk = FailingDisk(monkeypatch, Path, "read_bytes", str(copied.runs / "run" / "best"), failures=ALWAYS)
    with pytest.raises(StorageError, match=r"run/best/step-\d+': .*Input/output error.*run the same command"):
        find(copied, "run")
    disk.failures = 2
    assert find(copied, "run")[0].info.run is not None


def test_more_epochs_extend_a_run_that_has_ended(workspace: Workspace, shapes: Dataset, tmp_path: Path) -> None:
    shutil.copytree(workspace.runs / "ended", tmp_path / "run")
    notes: list[str] = []
    result = train_run(shapes, settings(epochs=4), tmp_path / "run", callbacks=Callbacks(on_note=notes.append))
    assert "run 'run' is extended from 2 to 4 epochs" in notes
    assert result.epochs == 4
    assert result.resumed_at_step == result.steps // 2
    assert [row["epoch"] for row in result.history] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"train\.epochs is 4 there and 3 here"):
        train_run(shapes, settings(epochs=3), tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lr": 0.5}, r"train\.lr is 0\.002 there and 0\.5 here\. Give"),
        ({"epochs": 1}, r"train\.epochs is 2 there and 1 here"),
        ({"epochs": 5, "seed": 7}, r"train\.epochs is 2 there and 5 here, train\.seed is 0 there and 7 here"),
    ],
)
def test_a_refusal_names_the_settings_that_differ(
    workspace: Workspace, shapes: Dataset, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train_run(shapes, settings(**changed), workspace.runs / "ended")


def test_a_refusal_names_another_dataset(workspace: Workspace, tmp_path: Path) -> None:
    sightline.synth("shapes", "other", images=20, seed=2, workspace=tmp_path)
    other = sightline.open_dataset("other", workspace=tmp_path)
    with pytest.raises(ConfigError, match=r"dataset is shapes \(content hash \w{12}\) there and other \("):
        train_run(other, settings(), workspace.runs / "ended")


def test_the_automatic_name_finds_the_run_to_extend(workspace: Workspace, shapes: Dataset, tmp_path: Path) -> None:
    def named(epochs: int, **train: object) -> str:
        return choose_name(tmp_path, shapes, resolve_training(settings(epochs=epochs, **train), shapes)[0])

    def own(epochs: int) -> str:
        return run_name(shapes, resolve_training(settings(epochs=epochs), shapes)[0])

    assert named(3) == own(3)
    shutil.copytree(workspace.runs / "ended", tmp_path / own(2))
    assert named(2) == named(3) == own(2), "it ended after 2 epochs, and is extended"
    assert named(3, seed=1) not in (own(2), own(3))
    shutil.copytree(workspace.runs / "stopped", tmp_path / own(9))
    assert named(20) == own(2), "a run that has not ended stays as it is"
    assert named(1) == own(1), "fewer epochs are a run of their own"
    train_run(shapes, settings(epochs=3), tmp_path / own(2))
    assert named(3) == own(2), "the same command again finds the extended run"
