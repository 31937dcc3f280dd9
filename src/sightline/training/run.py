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
from sightline.training.attempt import AttemptFence
from sightline.training.callbacks import Callbacks
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.context import WorkerContext
from sightline.training.identity import claim, run_name, standing
from sightline.training.job import Job
from sightline.training.launch import is_joined, joined_rank, open_launcher, pick_launcher, train_joined
from sightline.training.messages import Origin, Outcome, RunProgress
from sightline.training.monitor import RunMonitor
from sightline.training.pictures import draw_predictions, save_with_card
from sightline.training.placement import settle_threads
from sightline.training.preflight import check_cores, check_training
from sightline.training.record import PREDICTIONS, RunRecorder
from sightline.training.resolve import start_from_weights
from sightline.training.run_model import take_best
from sightline.training.validation import divide
from sightline.workspace import CHECKPOINTS, LOCK, MODEL, writing_to


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
    callbacks: Callbacks | None = None,
    fresh: bool = False,
    tracker: Tracker | None = None,
) -> RunResult:
    """Train, or go on training, in a run's directory; leaves the best model in `model/`.

    Args:
        config: Resolved: see `resolve_training`.
    """
    callbacks, tracker = callbacks or Callbacks(), tracker or Untracked()
    check_cores(config)
    _check(dataset, config)
    if pick_launcher(config.workers) in ("inline", "local"):
        before = RunProgress() if fresh else standing(directory)
        config = settle_threads(config, before, on_note=callbacks.on_note)
    parts = divide(dataset, config.train)
    callbacks.on_note(f"validation: {parts.reason}")
    with _alone_in(directory), open_launcher(config) as launcher:
        if config.workers.launcher == "auto" and not config.workers.address and launcher.placement.launcher == "ray":
            callbacks.on_note(f"training on the Ray cluster of this process ({find_cluster()})")
        if (idle := launcher.placement.workers - config.train.batch) > 0:
            callbacks.on_note(f"a batch of {config.train.batch} leaves {idle} workers idle: give a larger --batch")
        check_training(config, launcher.placement, directory, parts.train, on_note=callbacks.on_note)
        AttemptFence(directory).advance(callbacks.should_stop)  # What an earlier driver left alive saves nothing more.
        if fresh:
            tracker.abandon(directory)
        if extended := claim(directory, dataset, config, fresh=fresh):
            callbacks.on_note(extended)
        torch.manual_seed(config.train.seed)
        model = _make_model(dataset, config, callbacks)
        monitor = RunMonitor(
            directory.name,
            _standing(directory),
            num_workers=launcher.num_supervised,
            heartbeat_timeout_s=config.workers.hang_after_s,
        )
        recorder = RunRecorder(dataset, config, directory, tracker, launcher.placement)
        with recorder.during(monitor):
            monitor.subscribe(recorder.handle)
            monitor.subscribe(callbacks.handle)
            if monitor.progress.ended(config.train.epochs) and not is_joined():
                outcome = Outcome(monitor.progress, monitor.seconds, monitor.progress.step)
            else:
                job = Job(parts, config, model.state_dict())
                outcome = launcher.train(job, directory, monitor, callbacks.should_stop)
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
            recorder.conclude(draw)
            save_with_card(directory / MODEL, model, info, sorted((directory / PREDICTIONS).glob("*.jpg")))
    result = _result(directory, model, outcome)
    return replace(
        result,
        seconds=monitor.seconds,
        resumed_at_step=monitor.resumed_at_step,
        images_per_s=recorder.images_per_s,
        peak_memory_mb=recorder.memory["peak_memory_mb"],
        tracked_in=tracker.place,
    )


def follow_run(dataset: Dataset, config: Config, runs: Path, *, name: str | None, callbacks: Callbacks) -> RunResult:
    """Work as rank 1 or higher of processes that another launcher started; rank 0 resolves, keeps and reports the run.

    Args:
        runs: The directory of runs.
        name: Of the run, if the user gave one.
    """
    context = WorkerContext(Origin(name or "", rank=joined_rank()), should_stop=callbacks.should_stop)
    outcome, config = train_joined(dataset, config, None, context)
    train = config.train
    model = make_model(train.model, num_classes=len(dataset.classes), size=train.size)
    return _result(runs / (name or run_name(dataset, config)), model, outcome)


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


def _standing(directory: Path) -> RunProgress:
    """Where a run's last whole checkpoint stands."""
    latest = CheckpointDirectory(directory / CHECKPOINTS).load_latest()
    return RunProgress(**latest.progress) if latest else RunProgress()


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


def _make_model(dataset: Dataset, config: Config, callbacks: Callbacks) -> Detector:
    model = make_model(config.train.model, num_classes=len(dataset.classes), size=config.train.size)
    taken = start_from_weights(model, config.train, dataset)
    if taken:
        callbacks.on_note(taken)
    return model


def _check(dataset: Dataset, config: Config) -> None:
    task = family_of(config.train.model).task
    if task != dataset.info.task:
        wanted = f"a classifier ({', '.join(CLASSIFIERS)})" if task == "detection" else "a detector such as nano"
        raise ConfigError(f"dataset {dataset.info.name!r} is for {dataset.info.task}: take {wanted} with --model")
