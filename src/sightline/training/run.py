"""One run from beginning to end: its directory, its model, its resumption, and the best model it leaves."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sightline.config import Config, LoaderConfig
from sightline.data.dataset import Dataset
from sightline.data.loader import Loader
from sightline.data.parallel import num_cores
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationResult
from sightline.models.detector import Detector
from sightline.models.factory import CLASSIFIERS, family_of, make_model
from sightline.tracking.machine import peak_memory_mb
from sightline.tracking.tracker import Tracker, Untracked
from sightline.training.checkpoint import CheckpointDirectory
from sightline.training.collective import Alone
from sightline.training.evaluate import evaluate, make_metric
from sightline.training.loop import OnStep, Progress, Trainer
from sightline.training.model_files import ModelInfo, save_model
from sightline.training.pictures import draw_predictions
from sightline.training.precision import pick_device
from sightline.training.record import RunRecord
from sightline.training.resolve import resolve_training, start_from_weights
from sightline.training.validation import Parts, divide

IDENTITY = "identity.txt"
"""In a run's directory: the name that its settings and dataset give it, whatever the user called it."""


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        history: Scores by epoch.
        seconds: Where the time of this process went.
        resumed_at_step: The step from which it went on; 0 for a fresh run.
        images_per_s: Images in a second of training, over all processes of the run.
        tracked_in: Where MLflow keeps it; empty if it is not tracked.
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


@dataclass
class Watcher:
    """Who looks on while a run goes on; the default looks at nothing and never stops it."""

    on_step: OnStep = lambda progress, num_steps, losses, images: None
    on_scores: Callable[[int, dict[str, float]], None] = lambda epoch, scores: None
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] = lambda note: None
    on_checkpoint: Callable[[], None] = lambda: None


def run_name(dataset: Dataset, config: Config) -> str:
    """Names a run by what decides its outcome (of resolved settings): the same command again goes on with it."""
    settings = {"train": config.train.model_dump(mode="json"), "augment": config.augment.model_dump(mode="json")}
    # Weights count by their hash, wherever they lie.
    for place_only in ("threads", "device", "weights", "checkpoint_every_s"):
        settings["train"].pop(place_only)
    identity = json.dumps([settings, dataset.info.content_hash], sort_keys=True)
    return f"{dataset.info.name}-{config.train.model}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


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
    config, _ = resolve_training(config, dataset)
    _check(dataset, config)
    parts = divide(dataset, config.train)
    watcher.on_note(f"validation: {parts.reason}")
    _claim(directory, run_name(dataset, config), fresh=fresh)
    torch.set_num_threads(config.train.threads or num_cores())
    torch.manual_seed(config.train.seed)
    model = _make_model(dataset, config, watcher)
    record = RunRecord(dataset, config, directory, tracker)
    trainer = _trainer(model, parts, config, directory, _with_record(watcher, record))
    trainer.resume()
    resumed_at = trainer.progress.step
    with record.during(trainer):
        progress = trainer.run()
        _save_best(model, dataset, config, directory, progress)
        record.conclude(lambda to: draw_predictions(directory / "model", parts.validation, to))
    return RunResult(
        name=directory.name,
        directory=str(directory),
        best_score=progress.best_score,
        best_epoch=progress.best_epoch,
        epochs=progress.epoch,
        steps=progress.step,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        history=progress.history,
        seconds=trainer.seconds,
        resumed_at_step=resumed_at,
        images_per_s=record.images_per_s,
        peak_memory_mb=peak_memory_mb(),
        tracked_in=tracker.place,
    )


def _claim(directory: Path, identity: str, *, fresh: bool) -> None:
    """Make the run's directory, or find it; one that holds another run under the same name is refused."""
    note = directory / IDENTITY
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    elif note.is_file() and (found := note.read_text("utf-8").strip()) not in (identity, ""):
        raise ConfigError(
            f"run {directory.name!r} has other settings or another dataset (it is {found}, this would be {identity}): "
            "give --fresh to start it anew, or another --name"
        )
    directory.mkdir(parents=True, exist_ok=True)
    note.write_text(identity + "\n", "utf-8")


def _make_model(dataset: Dataset, config: Config, watcher: Watcher) -> Detector:
    model = make_model(config.train.model, num_classes=len(dataset.classes), size=config.train.size)
    taken = start_from_weights(model, config.train, dataset)
    if taken:
        watcher.on_note(taken)
    # Convolutions run faster on channels-last tensors, which is how decoded images come.
    return model.to(pick_device(config.train.device), memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _with_record(watcher: Watcher, record: RunRecord) -> Watcher:
    """The record hears first, so that nothing is lost if the one who looks on ends the run."""

    def on_step(progress: Progress, num_steps: int, losses: dict[str, float], images: int) -> None:
        record.on_step(progress, num_steps, losses, images)
        watcher.on_step(progress, num_steps, losses, images)

    def on_scores(epoch: int, scores: dict[str, float]) -> None:
        record.on_scores(epoch, scores)
        watcher.on_scores(epoch, scores)

    return replace(watcher, on_step=on_step, on_scores=on_scores, on_checkpoint=record.on_checkpoint)


def _check(dataset: Dataset, config: Config) -> None:
    task = family_of(config.train.model).task
    if task != dataset.info.task:
        wanted = f"a classifier ({', '.join(CLASSIFIERS)})" if task == "detection" else "a detector such as nano"
        raise ConfigError(f"dataset {dataset.info.name!r} is for {dataset.info.task}: take {wanted} with --model")


def _trainer(model: Detector, parts: Parts, config: Config, directory: Path, watcher: Watcher) -> Trainer:
    settings = LoaderConfig(batch=config.train.batch, threads=1, prefetch=config.loader.prefetch)
    return Trainer(
        model=model,
        loader=Loader(
            parts.train,
            settings,
            seed=config.train.seed,
            augment=config.augment,
            transform=model.preprocess(),
        ),
        config=config.train,
        collective=Alone(),
        checkpoints=CheckpointDirectory(directory / "checkpoints"),
        evaluate=lambda scored: score_model(scored, parts.validation, loader=settings, iou=config.train.iou),
        on_scores=watcher.on_scores,
        on_step=watcher.on_step,
        should_stop=watcher.should_stop,
        on_checkpoint=watcher.on_checkpoint,
    )


def score_model(
    model: Detector, dataset: Dataset, *, loader: LoaderConfig, iou: float | None = None
) -> dict[str, float]:
    """The figures that choose the best epoch; `score` is mAP50, mAP at the overlap asked for, or accuracy."""
    found = evaluate(model, dataset, make_metric(model, dataset, iou=iou), loader=loader)
    if isinstance(found, ClassificationResult):
        return {"score": found.accuracy, "accuracy": found.accuracy}
    scores = {"score": found.map50, "map": found.map, "map50": found.map50, "f1": found.rates.f1}
    if iou is not None:
        scores = {"score": found.map, f"map{round(100 * iou)}": found.map, "f1": found.rates.f1}
    # Where the split has no box, or nothing was found, there is no figure; a run goes on all the same.
    known = {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}
    return known if math.isnan(found.score) else {**known, "score_threshold": found.score}


def _save_best(model: Detector, dataset: Dataset, config: Config, directory: Path, progress: Progress) -> None:
    best = CheckpointDirectory(directory / "best").load_latest()
    assert best is not None, "a run that ended has scored at least once"
    scores = next(row for row in progress.history if row["epoch"] == progress.best_epoch)
    info = ModelInfo(
        model=config.train.model,
        classes=list(dataset.classes),
        size=model.size,
        dataset=dataset.info.name,
        dataset_hash=dataset.info.content_hash,
        score_threshold=scores.get("score_threshold"),
        scores=scores,
    )
    save_model(directory / "model", best.ema or best.weights, info)
