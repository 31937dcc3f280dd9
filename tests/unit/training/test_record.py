"""What a run leaves besides its model, also when several processes made it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline
from sightline.config import load_config
from sightline.errors import Stopped
from sightline.tracking.tracker import RunFacts, Untracked
from sightline.training.callbacks import Callbacks
from sightline.training.record import _by_class
from sightline.training.step_log import StepLog
from sightline.training.timing import PARTS, TimedCollective, Timing
from support.training import train_run


class SlowPair:
    """Two workers; the other one is a hundredth of a second late."""

    rank, size = 0, 2

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return tensor

    broadcast = all_reduce

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def barrier(self) -> None:
        time.sleep(0.01)


def test_only_adding_up_counts_as_all_reduce() -> None:
    timed = TimedCollective(SlowPair())
    for _ in range(3):
        timed.all_reduce(torch.zeros(1))
    counted = timed.seconds
    assert counted >= 0.03
    timed.barrier()
    timed.broadcast(torch.zeros(1))
    assert timed.seconds == counted
    assert (timed.rank, timed.size, timed.gather(1)) == (0, 2, [1, 1])


def test_time_adds_up_over_processes(tmp_path: Path) -> None:
    first = Timing(tmp_path, {**dict.fromkeys(PARTS, 0.0), "data": 1.0, "evaluation": 5.0})
    first.images = 30
    first.save()
    second = Timing(tmp_path, {**dict.fromkeys(PARTS, 0.0), "data": 1.0, "optimizer": 1.0})
    assert (second.images, second.training_s, second.images_per_s) == (30, 3.0, 10.0)
    assert second.seconds["evaluation"] == 5.0
    (tmp_path / "timing.json").write_text('{"images": 3')  # Torn by a crash.
    assert Timing(tmp_path, dict.fromkeys(PARTS, 0.0)).images == 0


def test_steps_that_are_taken_again_stand_once(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.go_on_from(0)
    for step in (1, 2, 3):
        log.add(step, step / 5, 1.0, 0.1, 10.0)
    log.go_on_from(1)  # Workers were lost; the driver was not.
    for step in (2, 3):
        log.add(step, step / 5, 2.0, 0.1, 10.0)
    log.save()
    assert [(row[0], row[2]) for row in log.read()] == [(1, 1.0), (2, 2.0), (3, 2.0)]


def test_steps_after_the_last_checkpoint_are_forgotten(tmp_path: Path) -> None:
    log = StepLog(tmp_path)
    log.go_on_from(0)
    for step in range(1, 6):
        log.add(step, step / 5, 1.0, 0.1, 10.0)
    log.save()
    with open(tmp_path / "steps.csv", "a") as stream:
        stream.write("6,1.2,0.5,1e-")  # Torn by a crash.
    again = StepLog(tmp_path)
    again.go_on_from(3)
    again.add(4, 0.8, 2.0, 0.1, 10.0)
    again.save()
    assert [(row[0], row[2]) for row in again.read()] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


class Notebook(Untracked):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.logged: dict[str, dict[int, float]] = {}
        self.ends: list[str] = []
        self.artifacts: list[str] = []
        self.facts: list[RunFacts] = []

    def start(self, run: RunFacts) -> bool:
        self.facts.append(run)
        return len(self.facts) > 1

    def log(self, metrics: Any, *, step: int) -> None:
        for name, value in metrics.items():
            self.logged.setdefault(name, {})[step] = value

    def finish(self, status: Any, artifacts: Any = ()) -> None:
        self.ends.append(status)
        self.artifacts = [path.name for path in artifacts if path.exists()]


@pytest.mark.parametrize(
    ("kind", "model", "score"), [("shapes", "nano", "map50"), ("shape-classes", "mobilenet", "accuracy")]
)
def test_a_run_tells_everything_over_a_stop(tmp_path: Path, kind: Any, model: str, score: str) -> None:
    sightline.synth(kind, "set", images=24, seed=1, workspace=tmp_path)
    dataset = sightline.open_dataset("set", workspace=tmp_path)
    settings = {"model": model, "size": 64, "epochs": 2, "batch": 4, "threads": 1}
    config = load_config(flags={"train": settings, "tracking": {"uri": "http://ann:hunter2@host"}})
    told, calls = Notebook(), iter(range(100))
    directory = tmp_path / "run"
    stopping = Callbacks(should_stop=lambda: next(calls) == 2)
    with pytest.raises(Stopped):
        train_run(dataset, config, directory, callbacks=stopping, tracker=told)
    assert told.ends == ["KILLED"]
    result = train_run(dataset, config, directory, tracker=told)

    assert told.ends == ["KILLED", "FINISHED"]
    assert list(told.logged["train/loss"]) == list(range(1, result.steps + 1))
    assert list(told.logged[f"val/{score}"]) == [result.steps // 2, result.steps]
    assert told.logged["run/best_score"][result.steps] == result.best_score
    assert {f"time/{name}_s" for name in PARTS} <= told.logged.keys()
    assert told.logged["run/peak_memory_mb"][result.steps] > 100
    total = sum(told.logged[f"time/{name}_s"][result.steps] for name in PARTS)
    assert told.logged["time/total_s"][result.steps] == pytest.approx(total)
    figure = "ap50" if score == "map50" else "f1"
    by_class = {name.removeprefix(f"class/{figure}/") for name in told.logged if name.startswith(f"class/{figure}/")}
    assert by_class
    assert by_class <= set(dataset.classes)
    assert {name.partition(".")[0] for name in told.facts[0].settings} == {
        "decode",
        "loader",
        "augment",
        "train",
        "workers",
    }
    facts = told.facts[-1]
    assert facts.settings["train.model"] == model
    assert facts.settings["train.lr"] == {"nano": "0.002", "mobilenet": "0.001"}[model]
    assert facts.tags["sightline.dataset_hash"] == dataset.info.content_hash
    assert facts.tags["machine.threads"] == "1"

    assert told.artifacts == ["config.json", "machine.json", "scores.json", "learning-curve.png", "predictions"]
    assert (directory / "learning-curve.png").read_bytes()[:4] == b"\x89PNG"
    assert 1 <= len(list((directory / "predictions").glob("*.jpg"))) <= 6
    assert len(StepLog(directory).read()) == result.steps
    timing = json.loads((directory / "timing.json").read_text())
    assert timing["images"] == 2 * dataset.info.splits["train"].images
    assert "hunter2" not in (directory / "config.json").read_text()


def test_names_of_classes_become_names_of_metrics() -> None:
    """MLflow takes letters, digits and some signs; what is left equal is told apart by its number."""
    classes = ("open", "a/b", "a&b", "../up", "ünï 图", "?")
    found = _by_class({f"ap/{index}": index / 10 for index in range(6)}, classes)
    names = ["open", "a_b-1", "a_b-2", "_up", "ünï 图", "_"]
    assert found == {f"class/ap/{name}": index / 10 for index, name in enumerate(names)}


def test_an_error_ends_a_run_as_failed(tmp_path: Path) -> None:
    sightline.synth("shapes", "set", images=12, seed=1, workspace=tmp_path)
    config = load_config(flags={"train": {"size": 64, "epochs": 1, "threads": 1}})
    told = Notebook()

    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        train_run(
            sightline.open_dataset("set", workspace=tmp_path),
            config,
            tmp_path / "run",
            callbacks=Callbacks(on_step=fail),
            tracker=told,
        )
    assert told.ends == ["FAILED"]
