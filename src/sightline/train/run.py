"""One run from beginning to end: its directory, its model, its resumption, and the best model it leaves."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sightline.config import Config, LoaderConfig
from sightline.data.dataset import Dataset
from sightline.data.loader import Loader
from sightline.data.parallel import num_cores
from sightline.errors import ConfigError
from sightline.metrics.classification import ClassificationResult
from sightline.models.detector import Detector
from sightline.models.factory import make_model
from sightline.train.checkpoint import CheckpointDirectory
from sightline.train.collective import Alone
from sightline.train.evaluate import evaluate, make_metric
from sightline.train.loop import OnStep, Progress, Trainer
from sightline.train.model_files import ModelInfo, save_model


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        history: Scores by epoch.
        seconds: Where the time of this process went.
        resumed_at_step: The step from which it went on; 0 for a fresh run.
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


@dataclass
class Watcher:
    """Who looks on while a run goes on; the default looks at nothing and never stops it."""

    on_step: OnStep = lambda progress, num_steps, losses, images: None
    on_scores: Callable[[int, dict[str, float]], None] = lambda epoch, scores: None
    should_stop: Callable[[], bool] = lambda: False


def run_name(dataset: Dataset, config: Config) -> str:
    """Names a run by what decides its outcome: the same command again goes on with the same run."""
    settings = {"train": config.train.model_dump(mode="json"), "augment": config.augment.model_dump(mode="json")}
    for name in ("threads", "checkpoint_every_s"):
        settings["train"].pop(name)
    identity = json.dumps([settings, dataset.info.content_hash], sort_keys=True)
    return f"{dataset.info.name}-{config.train.model}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def train_run(
    dataset: Dataset, config: Config, directory: Path, *, watcher: Watcher | None = None, fresh: bool = False
) -> RunResult:
    """Train, or go on training, in a run's directory; leaves the best model in `model/`."""
    watcher = watcher or Watcher()
    _check(dataset, config)
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.model_dump(mode="json"), indent=2) + "\n", "utf-8")
    torch.set_num_threads(config.train.threads or num_cores())
    torch.manual_seed(config.train.seed)
    model = make_model(config.train.model, num_classes=len(dataset.classes), size=config.train.size)
    trainer = _trainer(model, dataset, config, directory, watcher)
    trainer.resume()
    resumed_at = trainer.progress.step
    progress = trainer.run()
    _save_best(model, dataset, config, directory, progress)
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
    )


def validation_split(dataset: Dataset) -> str:
    """The split that scores a run: val, else test, else the only one there is."""
    return next((name for name in ("val", "test") if name in dataset.info.splits), next(iter(dataset.info.splits)))


def _check(dataset: Dataset, config: Config) -> None:
    classifies = config.train.model in ("resnet18", "resnet50", "mobilenet")
    if classifies != (dataset.info.task == "classification"):
        wanted = "a classifier (resnet18, resnet50, mobilenet)" if not classifies else "a detector such as nano"
        raise ConfigError(f"dataset {dataset.info.name!r} is for {dataset.info.task}: take {wanted} with --model")
    if "train" not in dataset.info.splits:
        raise ConfigError(
            f"dataset {dataset.info.name!r} has no split 'train', only {', '.join(dataset.info.splits)}: ingest it "
            "with --split train=0.8,val=0.2"
        )


def _trainer(model: Detector, dataset: Dataset, config: Config, directory: Path, watcher: Watcher) -> Trainer:
    settings = LoaderConfig(batch=config.train.batch, threads=1, prefetch=config.loader.prefetch)
    validation = dataset.select(validation_split(dataset))

    return Trainer(
        model=model,
        loader=Loader(
            dataset.select("train"),
            settings,
            seed=config.train.seed,
            augment=config.augment,
            transform=model.preprocess(),
        ),
        config=config.train,
        collective=Alone(),
        checkpoints=CheckpointDirectory(directory / "checkpoints"),
        evaluate=lambda scored: score_model(scored, validation, loader=settings),
        on_scores=watcher.on_scores,
        on_step=watcher.on_step,
        should_stop=watcher.should_stop,
    )


def score_model(model: Detector, dataset: Dataset, *, loader: LoaderConfig) -> dict[str, float]:
    """The figures that choose the best epoch; `score` is mAP50, or accuracy."""
    found = evaluate(model, dataset, make_metric(model, dataset), loader=loader)
    if isinstance(found, ClassificationResult):
        return {"score": found.accuracy, "accuracy": found.accuracy}
    scores = {"score": found.map50, "map": found.map, "map50": found.map50, "f1": found.rates.f1}
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
