"""What every worker of a run does, wherever and by whomever it was started."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sightline.config import Config, TrainConfig
from sightline.data.dataset import Dataset
from sightline.data.loader import Loader, LoadOptions
from sightline.models.detector import Detector
from sightline.models.factory import family_of, make_model
from sightline.models.weights import Weights
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory, CheckpointStore
from sightline.training.collective import Collective
from sightline.training.evaluate import score_model
from sightline.training.heartbeat import Activity
from sightline.training.loop import OnStep, Progress, Trainer
from sightline.training.placement import threads_of
from sightline.training.precision import PrecisionName, pick_device, pick_precision
from sightline.training.validation import divide
from sightline.training.verify import Verifier
from sightline.workspace import BEST as BEST

CHECKPOINTS = "checkpoints"


@dataclass
class Watcher:
    """Who looks on while a run goes on; the default looks at nothing and never stops it."""

    on_step: OnStep = lambda progress, num_steps, losses, images: None
    on_scores: Callable[[int, dict[str, float]], None] = lambda epoch, scores: None
    should_stop: Callable[[], bool] = lambda: False
    on_note: Callable[[str], None] = lambda note: None
    on_checkpoint: Callable[[], None] = lambda: None
    on_workers: Callable[[int, int], None] = lambda alive, wanted: None


class NoStore:
    """For workers other than rank 0, which keeps the run's state for all."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Never asked."""
        raise AssertionError("only rank 0 saves")

    def load_latest(self) -> Checkpoint | None:
        """Rank 0 hands it over."""
        return None


Tell = Callable[[str, Any], None]
"""Takes a word and what belongs to it: ready, step, scores, checkpoint, note; see `Keeper.hear`."""


@dataclass
class Desk:
    """Where a worker leaves what is to be kept, and whom it tells; only rank 0 saves and tells."""

    checkpoints: CheckpointStore = field(default_factory=NoStore)
    best: CheckpointStore = field(default_factory=NoStore)
    tell: Tell = lambda word, content: None
    should_stop: Callable[[], bool] = lambda: False
    activity: Activity = field(default_factory=Activity)

    @classmethod
    def in_directory(cls, directory: Path, tell: Tell, should_stop: Callable[[], bool]) -> "Desk":
        """Rank 0's desk where the run's directory can be reached."""
        checkpoints = CheckpointDirectory(directory / CHECKPOINTS)
        return cls(checkpoints, CheckpointDirectory(directory / BEST, keep=1), tell, should_stop)


@dataclass(frozen=True)
class Job:
    """A run as its workers need to know it.

    Attributes:
        config: Resolved.
        weights: What the model starts from; rank 0 has it and hands it to the others.
    """

    dataset: Dataset
    config: Config
    weights: Weights | None


@dataclass(frozen=True)
class Outcome:
    """What a worker can tell of a run that came to its end."""

    progress: Progress
    seconds: dict[str, float]
    resumed_at_step: int


def work(
    job: Job, collective: Collective, desk: Desk, *, workers_here: int = 1, device: torch.device | None = None
) -> Outcome:
    """Train as one of the workers, from wherever the run stands.

    Args:
        workers_here: How many workers share this machine's cores.
    """
    settings, device = job.config.train, device or pick_device(job.config.train.device)
    torch.set_num_threads(threads_of(job.config, workers_here))
    desk.activity.on_gpu = device.type == "cuda"
    model = make_model(settings.model, num_classes=len(job.dataset.classes), size=settings.size)
    if collective.rank == 0 and job.weights is not None:
        model.load_state_dict(job.weights)
    for tensor in model.state_dict().values():
        collective.broadcast(tensor)
    # Convolutions run faster on channels-last tensors, which is how decoded images come.
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    precision = agree_on_precision(settings, device, collective)
    job = replace(
        job, config=job.config.model_copy(update={"train": settings.model_copy(update={"precision": precision})})
    )
    trainer = make_trainer(model, job, collective, desk)
    trainer.resume()
    resumed_at, before = trainer.progress.step, trainer.progress.precision
    if before not in ("", precision):
        desk.tell("note", f"goes on in {precision}, which all of these workers are quick in; it was {before} before")
    trainer.progress.precision = precision
    trainer.progress.workers, trainer.progress.threads = collective.size, torch.get_num_threads()
    desk.tell("ready", (trainer.progress, trainer.seconds))
    return Outcome(trainer.run(), trainer.seconds, resumed_at)


def agree_on_precision(settings: TrainConfig, device: torch.device, collective: Collective) -> PrecisionName:
    """What `auto` means on the workers' own hardware; where they differ, what all of them are quick in."""
    own = pick_precision(settings.precision, device, depthwise=family_of(settings.model).depthwise)
    return own if len(set(collective.gather(own))) == 1 else "float32"


def make_trainer(model: Detector, job: Job, collective: Collective, desk: Desk) -> Trainer:
    """The loop around a model, with the reading and scoring of this worker's share."""
    config, tell = job.config, desk.tell
    parts = divide(job.dataset, config.train)
    reading = LoadOptions.of(config, batch=config.train.batch)
    trainer = Trainer(
        model=model,
        loader=Loader(
            parts.train, reading, seed=config.train.seed, augment=config.augment, transform=model.preprocess()
        ),
        config=config.train,
        collective=collective,
        checkpoints=desk.checkpoints,
        best=desk.best,
        evaluate=lambda scored: score_model(
            scored,
            parts.validation,
            loader=reading,
            iou=config.train.iou,
            collective=collective,
            progress=lambda _: desk.activity.move(),
        ),
        verifier=Verifier(len(parts.train), partial(tell, "note")) if config.workers.verify else None,
        on_scores=lambda epoch, scores: tell("scores", (epoch, scores)),
        should_stop=desk.should_stop,
        on_checkpoint=lambda: tell("checkpoint", None),
        activity=desk.activity,
    )
    # A step's message brings the time so far with it, for the driver cannot see it.
    trainer.on_step = lambda *step: tell("step", (*step, trainer.seconds))
    return trainer
