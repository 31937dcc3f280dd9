"""What is kept of a run besides its model: in its directory for everybody, and in MLflow."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sightline.config import Config
from sightline.data.dataset import Dataset
from sightline.errors import Stopped, StorageError
from sightline.models.factory import family_of
from sightline.secrets import redact_values
from sightline.tracking.commit import git_commit
from sightline.tracking.machine import Placement, this_machine
from sightline.tracking.tracker import EPOCHS, RunFacts, Tracker
from sightline.training.messages import CheckpointSaved, Evaluated, Message, Resumed, RunProgress, StepCompleted
from sightline.training.schedule import learning_rate
from sightline.training.step_log import StepLog
from sightline.training.timing import Timing, peak_memory

CONFIG, MACHINE, SCORES, CURVE, PREDICTIONS = (
    "config.json",
    "machine.json",
    "scores.json",
    "learning-curve.png",
    "predictions",
)
_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
_MAX_POINTS = 5000
"""Points of a curve: of a longer run every second, third, … step is noted."""
_SETTINGS = {"decode", "loader", "augment", "train", "workers"}
"""Sections that concern training; the others are of other commands."""
_NOT_IN_NAMES = re.compile(r"[^\w\-. ]")
"""What the name of a metric in MLflow may not have; a slash would make a folder of it."""


class Observed(Protocol):
    """A run while it goes on: a trainer in this process, or the driver's picture of one elsewhere."""

    @property
    def progress(self) -> RunProgress:
        """Where it stands."""
        ...

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time went."""
        ...

    @property
    def memory(self) -> dict[str, float]:
        """The most that any worker has held, by kind of memory."""
        ...


class RunRecorder:
    """Keeps the record of one run, where its directory is, from the messages of its workers."""

    def __init__(
        self, dataset: Dataset, config: Config, directory: Path, tracker: Tracker, placement: Placement
    ) -> None:
        self._dataset, self._config, self._directory, self._tracker = dataset, config, directory, tracker
        self._placement = placement
        self._steps = StepLog(directory)
        self._spent, self._stepped = 0.0, False

    @contextmanager
    def during(self, run: Observed) -> Iterator[None]:
        """Keep the story of a run while it goes on, and how it ended."""
        self._run, self._timing = run, Timing(self._directory, run.seconds)
        self._begin()
        try:
            yield
        except (Stopped, KeyboardInterrupt, SystemExit):
            self._tracker.finish("KILLED")
            raise
        except BaseException:
            self._tracker.finish("FAILED")
            raise
        self._tracker.finish(
            "FINISHED", [self._directory / name for name in (CONFIG, MACHINE, SCORES, CURVE, PREDICTIONS)]
        )

    @property
    def memory(self) -> dict[str, float]:
        """The most that any worker has held, by kind of memory; that of this process if no other has said."""
        return self._run.memory or peak_memory()

    @property
    def images_per_s(self) -> float:
        """Over the whole run."""
        return self._timing.images_per_s

    def handle(self, message: Message) -> None:
        """Keep what a message says."""
        match message:
            case Resumed(progress=progress):  # What came after the checkpoint of earlier workers is forgotten.
                self._steps.go_on_from(progress.step)
            case StepCompleted(progress=progress, num_steps=num_steps, losses=losses, images=images):
                self._on_step(progress, num_steps, losses, images)
            case Evaluated(epoch=epoch, scores=scores):
                self._on_scores(epoch, scores)
            case CheckpointSaved():
                self._save()

    def _on_step(self, progress: RunProgress, num_steps: int, losses: dict[str, float], images: int) -> None:
        self._stepped = True
        self._timing.images += images
        spent, self._spent = self._timing.training_s - self._spent, self._timing.training_s
        every = max(1, num_steps // _MAX_POINTS)
        if progress.step % every and progress.step != num_steps:
            return
        lr = learning_rate(self._config.train, progress.step - 1, num_steps)
        rate = images / spent if spent > 0 else 0.0
        epoch = progress.step * self._config.train.epochs / num_steps
        self._steps.add(progress.step, epoch, losses["loss"], lr, rate)
        terms = {f"train/loss_{name}": value for name, value in losses.items() if name != "loss"}
        noted = {"train/loss": losses["loss"], **terms, "train/lr": lr, "train/images_per_s": rate}
        self._tracker.log(noted, step=progress.step)

    def _on_scores(self, epoch: int, scores: dict[str, float]) -> None:
        progress = self._run.progress
        best = max(progress.best_score, scores["score"])
        noted = {**_scores({"epoch": epoch, **scores}), "run/best_score": best, **self._costs()}
        self._tracker.log(noted, step=progress.step)
        self._tracker.flush()

    def _save(self) -> None:
        """Put on disk what a killed process would lose, and send what is queued."""
        try:
            self._steps.save()
            self._timing.save()
        except OSError as error:
            raise StorageError(f"cannot write to the run's directory {str(self._directory)!r}: {error}") from error
        self._tracker.flush()

    def conclude(self, draw_predictions: Callable[[Path], None]) -> None:
        """Write scores and pictures of a run that came to its end."""
        from sightline.report.charts import to_png
        from sightline.report.curve import learning_curve

        self._save()
        progress = self._run.progress
        by_class = _by_class(progress.best_classes, self._dataset.classes)
        self._tracker.log({"run/best_epoch": progress.best_epoch, **by_class, **self._costs()}, step=progress.step)
        scores = {"best_score": progress.best_score, "best_epoch": progress.best_epoch, "history": progress.history}
        self._write(SCORES, scores)
        if not self._stepped and (self._directory / CURVE).is_file():
            return  # The run had ended before: its pictures are there.
        rows = self._steps.read()
        curve = learning_curve([row[1] for row in rows], [row[2] for row in rows], progress.history)
        (self._directory / CURVE).write_bytes(to_png(curve))
        draw_predictions(self._directory / PREDICTIONS)

    def _begin(self) -> None:
        self._spent = self._timing.training_s
        self._steps.go_on_from(self._run.progress.step)
        machine = this_machine(self._placement)
        self._write(MACHINE, machine.to_dict())
        self._write(CONFIG, self._config.model_dump(mode="json"))
        info = self._dataset.info
        tags = {"sightline.dataset": info.name, "sightline.dataset_hash": info.content_hash, **machine.to_tags()}
        tags[EPOCHS] = str(self._config.train.epochs)
        tags["sightline.licence"] = family_of(self._config.train.model).licence
        commit = git_commit(Path.cwd())
        if commit:
            tags |= {"mlflow.source.git.commit": commit.removesuffix("-dirty"), "sightline.git_commit": commit}
        facts = RunFacts(self._directory.name, self._directory, _flat(self._config), tags)
        if not self._tracker.start(facts):
            self._tell_past()

    def _tell_past(self) -> None:
        """What earlier processes noted, to a tracker that does not know this run."""
        for step, _, loss, lr, rate in self._steps.read():
            self._tracker.log({"train/loss": loss, "train/lr": lr, "train/images_per_s": rate}, step=int(step))
        progress = self._run.progress
        for row in progress.history:
            self._tracker.log(_scores(row), step=int(row["step"]))
        if progress.history:
            self._tracker.log({"run/best_score": progress.best_score}, step=progress.step)

    def _costs(self) -> dict[str, float]:
        seconds = {f"time/{name}_s": value for name, value in self._timing.seconds.items()}
        memory = {f"run/{name}": value for name, value in self.memory.items()}
        precision = self._run.progress.precision
        return {
            "run/images_per_s": self._timing.images_per_s,
            **({"run/precision_bits": float(_BITS[precision])} if precision else {}),
            **memory,
            **seconds,
            "time/total_s": self._timing.total_s,
        }

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(redact_values(value), indent=2) + "\n"
        (self._directory / name).write_text(text, "utf-8")


def _scores(row: dict[str, float]) -> dict[str, float]:
    return {f"val/{name}": value for name, value in row.items() if name != "step"}


def _by_class(figures: dict[str, float], classes: Sequence[str]) -> dict[str, float]:
    """Figures named `FIGURE/INDEX OF THE CLASS` as metrics named `class/FIGURE/NAME OF THE CLASS`."""
    names = [_NOT_IN_NAMES.sub("_", name).strip(". ") for name in classes]
    names = [name if name and names.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(names)]
    split = ((*name.rpartition("/")[::2], value) for name, value in figures.items())
    return {f"class/{figure}/{names[int(index)]}": value for figure, index, value in split}


def _flat(config: Config) -> dict[str, str]:
    """Settings by dotted name, as texts."""
    sections = redact_values(config.model_dump(mode="json", include=_SETTINGS))
    return {
        f"{section}.{name}": value if isinstance(value, str) else json.dumps(value)
        for section, values in sections.items()
        for name, value in values.items()
    }
