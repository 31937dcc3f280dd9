"""The loop: resumed runs end as if they had never stopped, and bad numbers stop it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch

import sightline
from sightline.api import train as sightline_train
from sightline.config import Config, load_config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, FormatError, Stopped, TrainingError
from sightline.models.bundle import open_bundle
from sightline.models.nano import NanoDetector
from sightline.training.callbacks import Callbacks
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.ema import MovingAverage
from sightline.training.identity import run_name
from sightline.training.messages import RunProgress
from sightline.training.precision import Precision
from sightline.training.schedule import learning_rate
from support.training import train_run


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    sightline.synth("shape-classes", "classes", images=20, seed=1, workspace=place)
    return place


@pytest.fixture
def shapes(workspace: Path) -> Dataset:
    return sightline.open_dataset("shapes", workspace=workspace)


def config(**train: object) -> Config:
    settings = {
        "model": "nano",
        "size": 64,
        "epochs": 2,
        "batch": 3,
        "threads": 1,
        "ema": 0.9,
        "checkpoint_every_s": 0.001,
        **train,
    }
    return load_config(
        flags={
            "train": settings,
            "augment": {"hflip": 0.5, "scale": 0.2, "brightness": 0.2},
            "tracking": {"enabled": False},
        }
    )


def final_weights(directory: Path) -> dict[str, torch.Tensor]:
    found = CheckpointDirectory(directory / "checkpoints").load_latest()
    assert found is not None
    assert found.ema is not None
    return {**found.weights, **{f"ema.{name}": tensor for name, tensor in found.ema.items()}}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stop_at(step: int) -> Callable[[], bool]:
    calls = [0]

    def should_stop() -> bool:
        calls[0] += 1
        return calls[0] == step

    return should_stop


@pytest.fixture(scope="module")
def undisturbed(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    directory = tmp_path_factory.mktemp("undisturbed")
    train_run(sightline.open_dataset("shapes", workspace=workspace), config(), directory)
    return final_weights(directory)


@pytest.mark.parametrize("steps", [[1], [2, 1, 4], [7]])
def test_a_run_stopped_in_mid_epoch_ends_bit_identical(
    shapes: Dataset, undisturbed: dict[str, torch.Tensor], tmp_path: Path, steps: list[int]
) -> None:
    for step in steps:
        with pytest.raises(Stopped):
            train_run(shapes, config(), tmp_path, callbacks=Callbacks(should_stop=stop_at(step)))
    result = train_run(shapes, config(), tmp_path)
    assert result.resumed_at_step == sum(steps)
    assert same(final_weights(tmp_path), undisturbed)


def test_another_seed_gives_another_run(shapes: Dataset, undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    train_run(shapes, config(seed=1), tmp_path)
    assert not same(final_weights(tmp_path), undisturbed)


def test_fresh_starts_anew(shapes: Dataset, tmp_path: Path) -> None:
    train_run(shapes, config(epochs=1), tmp_path)
    assert train_run(shapes, config(epochs=1), tmp_path).resumed_at_step > 0
    assert train_run(shapes, config(epochs=1), tmp_path, fresh=True).resumed_at_step == 0


def test_a_run_that_another_process_trains_is_refused(shapes: Dataset, tmp_path: Path) -> None:
    refused: list[str] = []

    def begin_again(*_: object) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="is being trained by another process"):
                train_run(shapes, config(), tmp_path / "run", fresh=True)
            refused.append("yes")

    train_run(shapes, config(epochs=1), tmp_path / "run", callbacks=Callbacks(on_step=begin_again))
    assert refused


def test_a_name_that_another_run_has_is_refused(workspace: Path) -> None:
    train = partial(sightline_train, "shapes", workspace=workspace, name="mine")
    train(config=config(epochs=1, seed=1))
    assert train(config=config(epochs=1, seed=1)).resumed_at_step > 0
    with pytest.raises(ConfigError, match="'mine' has other settings"):
        train(config=config(epochs=1, seed=2))
    assert train(config=config(epochs=1, seed=2), fresh=True).resumed_at_step == 0
    assert sightline.evaluate("mine", "shapes", workspace=workspace).num_images > 0


def test_a_run_of_a_later_version_is_refused(shapes: Dataset, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", config(epochs=1)
    train_run(shapes, settings, run)
    note = run / "dataset.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "format": 2}))
    with pytest.raises(FormatError, match=r"'run' has format version 2, and this Sightline reads 1: install"):
        train_run(shapes, settings, run)
    assert train_run(shapes, settings, run, fresh=True).resumed_at_step == 0


def test_epochs_that_are_not_scored_are_saved_only_when_it_is_time(shapes: Dataset, tmp_path: Path) -> None:
    settings = config(epochs=4, evaluate_every=2, checkpoint_every_s=1e9)
    half = train_run(shapes, settings, tmp_path).steps // 2
    saved = sorted(place.name for place in tmp_path.glob("checkpoints/step-*"))
    assert saved == [f"step-{half:08d}", f"step-{2 * half:08d}"]


def test_every_image_once_an_epoch(shapes: Dataset, tmp_path: Path) -> None:
    positions: list[int] = []

    def on_step(progress: RunProgress, num_steps: int, losses: dict[str, float], images: int) -> None:
        assert progress.step <= num_steps
        positions.append(images)
        assert losses["loss"] == pytest.approx(sum(value for name, value in losses.items() if name != "loss"))

    train_run(shapes, config(), tmp_path, callbacks=Callbacks(on_step=on_step))
    assert sum(positions) == 2 * shapes.info.splits["train"].images


def test_a_loss_that_is_not_finite_stops_the_run(
    shapes: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NanoDetector.loss
    calls = [0]

    def broken(self: NanoDetector, *arguments: object) -> object:
        calls[0] += 1
        terms = real(self, *arguments)  # type: ignore[arg-type]
        if calls[0] == 3:
            terms[0].total.data.fill_(float("nan"))
        return terms

    monkeypatch.setattr(NanoDetector, "loss", broken)
    with pytest.raises(TrainingError, match=r"not finite: loss nan.* at step 2 .*images "):
        train_run(shapes, config(), tmp_path)
    found = CheckpointDirectory(tmp_path / "checkpoints").load_latest()
    assert found is not None
    assert found.progress["step"] == 2


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_weights_that_are_not_finite_stop_the_run_and_are_not_saved(
    shapes: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """A weight that no loss shows (a statistic of BatchNorm, of the moving average too) is found when it is saved."""
    real = NanoDetector.loss
    calls = [0]

    def broken(self: NanoDetector, *arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 3:
            self.net.fuse8[1].running_var.fill_(float("inf"))
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(NanoDetector, "loss", broken)
    with pytest.raises(TrainingError, match=r"weights are not finite: net\.fuse8\.1.* at step 3 .*images \w+"):
        train_run(shapes, config(precision=precision), tmp_path)
    found = CheckpointDirectory(tmp_path / "checkpoints").load_latest()
    assert found is not None
    assert found.progress["step"] == 2
    assert not (tmp_path / "best").exists()


def test_the_best_is_not_saved_if_it_is_not_finite(
    shapes: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def average_breaks(self: MovingAverage, step: int) -> None:
        self.weights["net.box_map.bias"].fill_(float("nan"))

    monkeypatch.setattr(MovingAverage, "update", average_breaks)
    with pytest.raises(TrainingError, match=r"weights are not finite: net\.box_map\.bias; at step 6"):
        train_run(shapes, config(checkpoint_every_s=1e9), tmp_path)
    assert not list(tmp_path.glob("*/step-*"))


def test_gradients_that_overflow_at_any_scale_stop_the_run(
    shapes: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale of float16 is lowered when gradients overflow; where that does not help, it is the model's fault."""
    seen: list[int] = []
    monkeypatch.setattr("sightline.training.loop.clip_gradients", lambda *_: float("inf"))
    monkeypatch.setattr(Precision, "may_overflow", property(lambda self: len(seen) < 3))
    callbacks = Callbacks(on_step=lambda progress, *_: seen.append(progress.step))
    with pytest.raises(TrainingError, match=r"gradient norm inf; at step 3"):
        train_run(shapes, config(precision="float16"), tmp_path, callbacks=callbacks)


def test_a_run_in_float16_goes_on_bit_identical(shapes: Dataset, tmp_path: Path) -> None:
    settings = config(precision="float16", accumulate=2, batch=4)
    train_run(shapes, settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_run(shapes, settings, tmp_path / "parts", callbacks=Callbacks(should_stop=stop_at(3)))
    saved = CheckpointDirectory(tmp_path / "parts" / "checkpoints").load_latest()
    assert saved is not None
    assert saved.optimizer["scaler"]["scale"] > 0
    train_run(shapes, settings, tmp_path / "parts")
    assert same(final_weights(tmp_path / "parts"), final_weights(tmp_path / "whole"))


def test_a_run_goes_on_from_the_weights_of_another(shapes: Dataset, tmp_path: Path) -> None:
    train_run(shapes, config(epochs=1), tmp_path / "first")
    notes: list[str] = []
    settings = config(epochs=1, weights=str(tmp_path / "first"), lr=1e-9)
    train_run(shapes, settings, tmp_path / "second", callbacks=Callbacks(on_note=notes.append))
    assert len(notes) == 2
    assert re.match(r"weights weights\.safetensors: took (\d+) of \1 tensors$", notes[1])
    one, other = (open_bundle(tmp_path / name / "model").load().state_dict() for name in ("first", "second"))
    torch.testing.assert_close(other["net.box_map.weight"], one["net.box_map.weight"], rtol=0, atol=1e-6)
    saved = json.loads((tmp_path / "second" / "config.json").read_text())["train"]
    assert (saved["optimizer"], saved["batchnorm"], saved["weights_hash"]) == ("adamw", "sync", ANY)


@pytest.mark.parametrize(("schedule", "end"), [("cosine", 0.01), ("step", 0.01), ("constant", 1.0)])
def test_the_rate_rises_for_a_share_of_the_run_then_falls(schedule: str, end: float) -> None:
    train = config(lr=1.0, warmup=0.1, schedule=schedule).train
    rates = [learning_rate(train, step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 101)
    assert all(one < other for one, other in pairwise(rates[:101]))
    assert rates[100] == 1.0
    assert all(one >= other for one, other in pairwise(rates[100:]))
    assert rates[-1] == pytest.approx(end, abs=1e-4)


def test_the_best_model_is_kept_and_loads(shapes: Dataset, tmp_path: Path) -> None:
    result = train_run(shapes, config(), tmp_path)
    bundle = open_bundle(tmp_path / "model")
    model, info = bundle.load(), bundle.info
    assert info.classes == tuple(shapes.classes)
    assert info.metrics["score"] == result.best_score
    assert info.dataset is not None
    assert info.dataset.content_hash == shapes.info.content_hash
    assert len(info.per_class) == len(info.classes)
    assert all(("ap50" in row) == (row["count"] > 0) for row in info.per_class)
    assert "![" in (tmp_path / "model" / "README.md").read_text()
    assert len(bundle.pictures) == len(list((tmp_path / "predictions").iterdir())) > 0
    train_run(shapes, config(), tmp_path)
    assert open_bundle(tmp_path / "model") == bundle  # A run that had ended keeps its model.
    assert len(model.detect(np.zeros((2, 64, 64, 3), np.uint8))) == 2


def test_a_classifier(workspace: Path, tmp_path: Path) -> None:
    dataset = sightline.open_dataset("classes", workspace=workspace)
    result = train_run(dataset, config(model="mobilenet", epochs=1), tmp_path)
    assert 0 <= result.best_score <= 1
    with pytest.raises(ConfigError, match="take a classifier"):
        train_run(dataset, config(model="nano"), tmp_path / "other")


def test_the_run_is_named_by_what_decides_its_outcome(shapes: Dataset) -> None:
    assert run_name(shapes, config()) == run_name(shapes, config(threads=2))
    assert run_name(shapes, config()) != run_name(shapes, config(lr=0.1))


SCRIPT = """
import sys
from pathlib import Path
import sightline
from sightline.config import load_config
from support.training import train_run
settings = {"model": "nano", "size": 64, "epochs": 2, "batch": 3, "threads": 1, "ema": 0.9, "checkpoint_every_s": 0.001}
config = load_config(flags={"train": settings, "augment": {"hflip": 0.5, "scale": 0.2, "brightness": 0.2}})
train_run(sightline.open_dataset("shapes", workspace=sys.argv[1]), config, Path(sys.argv[2]))
"""


def test_killed_runs_end_bit_identical(workspace: Path, undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """SIGKILL whenever a new checkpoint has appeared, three times, then to the end."""
    command = [sys.executable, "-c", SCRIPT, str(workspace), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(3):
        known = set(tmp_path.glob("checkpoints/step-*"))
        process = subprocess.Popen(command, env=environment)
        while set(tmp_path.glob("checkpoints/step-*")) <= known and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert CheckpointDirectory(tmp_path / "checkpoints").load_latest() is not None
    subprocess.run(command, check=True, env=environment)
    assert same(final_weights(tmp_path), undisturbed)
