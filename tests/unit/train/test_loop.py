"""The loop: resumed runs end as if they had never stopped, and bad numbers stop it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sightline
from sightline.config import Config, load_config
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, TrainingError
from sightline.models.nano import NanoDetector
from sightline.train.checkpoint import CheckpointDirectory
from sightline.train.loop import Progress, Stopped
from sightline.train.model_files import load_model
from sightline.train.run import Watcher, run_name, train_run


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
    settings = {"size": 64, "epochs": 2, "batch": 3, "threads": 1, "ema": 0.9, "checkpoint_every_s": 0.001, **train}
    return load_config(flags={"train": settings, "augment": {"hflip": 0.5, "scale": 0.2, "brightness": 0.2}})


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
            train_run(shapes, config(), tmp_path, watcher=Watcher(should_stop=stop_at(step)))
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


def test_every_image_once_an_epoch(shapes: Dataset, tmp_path: Path) -> None:
    positions: list[int] = []

    def on_step(progress: Progress, num_steps: int, losses: dict[str, float], images: int) -> None:
        assert progress.step <= num_steps
        positions.append(images)
        assert losses["loss"] == pytest.approx(sum(value for name, value in losses.items() if name != "loss"))

    train_run(shapes, config(), tmp_path, watcher=Watcher(on_step=on_step))
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
    with pytest.raises(TrainingError, match="not finite at step 2"):
        train_run(shapes, config(), tmp_path)
    found = CheckpointDirectory(tmp_path / "checkpoints").load_latest()
    assert found is not None
    assert found.progress["step"] == 2


def test_the_best_model_is_kept_and_loads(shapes: Dataset, tmp_path: Path) -> None:
    result = train_run(shapes, config(), tmp_path)
    model, info = load_model(tmp_path / "model")
    assert info.classes == list(shapes.classes)
    assert info.scores["score"] == result.best_score
    assert len(model.detect(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))) == 2


def test_a_classifier(workspace: Path, tmp_path: Path) -> None:
    dataset = sightline.open_dataset("classes", workspace=workspace)
    result = train_run(dataset, config(model="mobilenet", epochs=1), tmp_path)
    assert 0 <= result.best_score <= 1
    with pytest.raises(ConfigError, match="take a classifier"):
        train_run(dataset, config(), tmp_path / "other")


def test_the_run_is_named_by_what_decides_its_outcome(shapes: Dataset) -> None:
    assert run_name(shapes, config()) == run_name(shapes, config(threads=2))
    assert run_name(shapes, config()) != run_name(shapes, config(lr=0.1))


SCRIPT = """
import sys
from pathlib import Path
import sightline
from sightline.config import load_config
from sightline.train.run import train_run
settings = {"size": 64, "epochs": 2, "batch": 3, "threads": 1, "ema": 0.9, "checkpoint_every_s": 0.001}
config = load_config(flags={"train": settings, "augment": {"hflip": 0.5, "scale": 0.2, "brightness": 0.2}})
train_run(sightline.open_dataset("shapes", workspace=sys.argv[1]), config, Path(sys.argv[2]))
"""


def test_killed_runs_end_bit_identical(workspace: Path, undisturbed: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """SIGKILL whenever a new checkpoint has appeared, three times, then to the end."""
    command = [sys.executable, "-c", SCRIPT, str(workspace), str(tmp_path)]
    for _ in range(3):
        known = set(tmp_path.glob("checkpoints/step-*"))
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        while set(tmp_path.glob("checkpoints/step-*")) <= known and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert CheckpointDirectory(tmp_path / "checkpoints").load_latest() is not None
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert same(final_weights(tmp_path), undisturbed)
