"""What every worker of a run does, wherever and by whomever it was started."""

from dataclasses import dataclass, replace

import torch

from sightline.config import Config, TrainConfig
from sightline.data.loader import Loader, LoadOptions
from sightline.models.detector import Detector
from sightline.models.factory import family_of, make_model
from sightline.models.weights import Weights
from sightline.training.collective import Collective
from sightline.training.context import WorkerContext
from sightline.training.evaluate import score_model
from sightline.training.loop import Trainer
from sightline.training.messages import Outcome, Resumed
from sightline.training.placement import threads_of
from sightline.training.precision import PrecisionName, pick_device, pick_precision
from sightline.training.validation import Parts
from sightline.training.verify import Verifier


@dataclass(frozen=True)
class Job:
    """A run as its workers need to know it.

    Attributes:
        parts: The images that train and those that validate.
        config: Resolved.
        weights: What the model starts from; rank 0 has it and hands it to the others.
    """

    parts: Parts
    config: Config
    weights: Weights | None


def work(
    job: Job,
    collective: Collective,
    context: WorkerContext,
    *,
    workers_here: int = 1,
    device: torch.device | None = None,
) -> Outcome:
    """Train as one of the workers, from wherever the run stands.

    Args:
        workers_here: How many workers share this machine's cores.
    """
    settings, device = job.config.train, device or pick_device(job.config.train.device)
    torch.set_num_threads(threads_of(job.config, workers_here))
    context.activity.on_gpu = device.type == "cuda"
    model = make_model(settings.model, num_classes=len(job.parts.train.classes), size=settings.size)
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
    trainer = make_trainer(model, job, collective, context)
    trainer.resume()
    resumed_at, before = trainer.progress.step, trainer.progress.precision
    if before not in ("", precision):
        context.note(f"goes on in {precision}, which all of these workers are quick in; it was {before} before")
    trainer.progress.precision = precision
    trainer.progress.workers, trainer.progress.threads = collective.size, torch.get_num_threads()
    context.send(Resumed(context.origin, trainer.progress, trainer.seconds))
    return Outcome(trainer.run(), trainer.seconds, resumed_at)


def agree_on_precision(settings: TrainConfig, device: torch.device, collective: Collective) -> PrecisionName:
    """What `auto` means on the workers' own hardware; where they differ, what all of them are quick in."""
    own = pick_precision(settings.precision, device, depthwise=family_of(settings.model).depthwise)
    return own if len(set(collective.gather(own))) == 1 else "float32"


def make_trainer(model: Detector, job: Job, collective: Collective, context: WorkerContext) -> Trainer:
    """The loop around a model, with the reading and scoring of this worker's share."""
    config = job.config
    parts = job.parts
    reading = LoadOptions.of(config, batch=config.train.batch)
    return Trainer(
        model=model,
        loader=Loader(parts.train, reading, seed=config.train.seed, augment=config.augment, transform=model.letterbox),
        config=config.train,
        collective=collective,
        context=context,
        evaluate=lambda scored: score_model(
            scored,
            parts.validation,
            loader=reading,
            iou=config.train.iou,
            collective=collective,
            progress=lambda _: context.activity.move(),
        ),
        verifier=Verifier(len(parts.train), context.note) if config.workers.verify else None,
    )
