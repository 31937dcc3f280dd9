"""One run from beginning to end: its directory, its model, its resumption, and the best model it leaves."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from sightline.cluster.address import find_cluster
from sightline.config import Config
from sightline.data.dataset import Dataset
from sightline.data.disk import make_directory
from sightline.errors import ConfigError
from sightline.models.detector import Detector
from sightline.models.factory import CLASSIFIERS, family_of, make_model
from sightline.models.info import DatasetNote
from sightline.tracking.tracker import Tracker, Untracked
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.identity import claim, run_name, standing
from sightline.training.job import CHECKPOINTS, Desk, Job, Outcome, Watcher
from sightline.training.keeper import Keeper
from sightline.training.launch import is_joined, open_launcher, pick_launcher, train_joined
from sightline.training.loop import Progress
from sightline.training.pictures import draw_predictions, save_with_card
from sightline.training.placement import settle_threads
from sightline.training.preflight import check_cores, check_training
from sightline.training.record import PREDICTIONS, RunRecord
from sightline.training.resolve import resolve_training, start_from_weights
from sightline.training.run_model import take_best
from sightline.training.validation import divide
from sightline.workspace import LOCK, MODEL, writing_to


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        history: Scores by epoch.
        seconds: Where the time of this process went.
        resumed_at_step: The step from which it went on; 0 for a fresh run.
        images_per_s: Images in a second of training, over all processes of the run.
        tracked_in: Where MLflow keeps it; empty if it is not tracked.
        registered: The version that its model became in the registry; empty if none was asked for.
    """

    name: str
    directory: str
    best_score: float
    best_epoch: int
    epochs: int
    steps: int
    num_parameters: int
    history: list[dict[str, float]]
    seconds: dict[str, float]
    resumed_at_step: int
    images_per_s: float
    peak_memory_mb: float
    tracked_in: str
    registered: str = ""


def train_run(
    dataset: Dataset,
    config: Config,
    directory: Path,
    *,
    watcher: Watcher | None = None,
    fresh: bool = False,
    tracker: Tracker | None = None,
) -> RunResult:
    """Train, or go on training, in a run's directory; leaves the best model in `model/`."""
    watcher, tracker = watcher or Watcher(), tracker or Untracked()
    check_cores(config)
    config, _ = resolve_training(config, dataset)
    _check(dataset, config)
    if pick_launcher(config.workers) in ("inline", "local"):
        before = Progress() if fresh else standing(directory)
        config = settle_threads(config, before, on_note=watcher.on_note)
    parts = divide(dataset, config.train)
    watcher.on_note(f"validation: {parts.reason}")
    with _alone_in(directory), open_launcher(config) as launcher:
        if config.workers.launcher == "auto" and not config.workers.address and launcher.placement.launcher == "ray":
            watcher.on_note(f"training on the Ray cluster of this process ({find_cluster()})")
        if (idle := launcher.placement.workers - config.train.batch) > 0:
            watcher.on_note(f"a batch of {config.train.batch} leaves {idle} workers idle: give a larger --batch")
        check_training(config, launcher.placement, directory, parts.train, on_note=watcher.on_note)
        if fresh:
            tracker.abandon(directory)
        if extended := claim(directory, dataset, config, fresh=fresh):
            watcher.on_note(extended)
        torch.manual_seed(config.train.seed)
        model = _make_model(dataset, config, watcher)
        keeper = Keeper(_standing(directory), watcher)
        record = RunRecord(dataset, config, directory, tracker, launcher.placement)
        keeper.keep(record)
        with record.during(keeper):
            if keeper.progress.ended(config.train.epochs) and not is_joined():
                outcome = Outcome(keeper.progress, keeper.seconds, keeper.progress.step)
            else:
                outcome = launcher.train(Job(dataset, config, model.state_dict()), directory, keeper)
                keeper.conclude(outcome)
            info = take_best(
                model,
                directory,
                name=config.train.model,
                classes=tuple(dataset.classes),
                dataset=DatasetNote(name=dataset.info.name, content_hash=dataset.info.content_hash),
            )
            draw = partial(
                draw_predictions,
                model,
                parts.validation,
                score_threshold=info.score_threshold,
                max_pixels=config.decode.max_pixels,
            )
            record.conclude(draw)
            save_with_card(directory / MODEL, model, info, sorted((directory / PREDICTIONS).glob("*.jpg")))
    result = _result(directory, model, outcome)
    return replace(
        result,
        seconds=keeper.seconds,
        resumed_at_step=keeper.resumed_at_step,
        images_per_s=record.images_per_s,
        peak_memory_mb=keeper.memory["peak_memory_mb"],
        tracked_in=tracker.place,
    )


def follow_run(dataset: Dataset, config: Config, runs: Path, *, name: str | None, watcher: Watcher) -> RunResult:
    """Work as rank 1 or higher of processes that another launcher started; rank 0 resolves, keeps and reports the run.

    Args:
        runs: The directory of runs.
        name: Of the run, if the user gave one.
    """
    outcome, job = train_joined(Job(dataset, config, None), Desk(should_stop=watcher.should_stop))
    train = job.config.train
    model = make_model(train.model, num_classes=len(dataset.classes), size=train.size)
    return _result(runs / (name or run_name(dataset, job.config)), model, outcome)


def _result(directory: Path, model: Detector, outcome: Outcome) -> RunResult:
    progress = outcome.progress
    return RunResult(
        name=directory.name,
        directory=str(directory),
        best_score=progress.best_score,
        best_epoch=progress.best_epoch,
        epochs=progress.epoch,
        steps=progress.step,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        history=progress.history,
        seconds=outcome.seconds,
        resumed_at_step=outcome.resumed_at_step,
        images_per_s=0.0,
        peak_memory_mb=0.0,
        tracked_in="",
    )


def _standing(directory: Path) -> Progress:
    """Where a run's last whole checkpoint stands."""
    latest = CheckpointDirectory(directory / CHECKPOINTS).load_latest()
    return Progress(**latest.progress) if latest else Progress()


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Hold the run against a second command; the lock goes with the process, however that ends."""
    with writing_to(directory):
        make_directory(directory)
        lock = open(directory / LOCK, "w")  # noqa: SIM115
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"run {directory.name!r} is being trained by another process: wait for it, or give another --name"
            ) from None
        yield


def _make_model(dataset: Dataset, config: Config, watcher: Watcher) -> Detector:
    model = make_model(config.train.model, num_classes=len(dataset.classes), size=config.train.size)
    taken = start_from_weights(model, config.train, dataset)
    if taken:
        watcher.on_note(taken)
    return model


def _check(dataset: Dataset, config: Config) -> None:
    task = family_of(config.train.model).task
    if task != dataset.info.task:
        wanted = f"a classifier ({', '.join(CLASSIFIERS)})" if task == "detection" else "a detector such as nano"
        raise ConfigError(f"dataset {dataset.info.name!r} is for {dataset.info.task}: take {wanted} with --model")
