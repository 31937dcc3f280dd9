"""The training loop: plain PyTorch, one worker's view of it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from sightline.config import TrainConfig
from sightline.data.loader import Batch, Loader
from sightline.errors import Stopped, TrainingError
from sightline.models.detector import Detector
from sightline.models.weights import NotFiniteError
from sightline.training.batchnorm import share_batchnorm
from sightline.training.checkpoint import Checkpoint, CheckpointStore
from sightline.training.collective import Collective, SingleProcess, broadcast_tree
from sightline.training.context import WorkerContext
from sightline.training.ema import MovingAverage
from sightline.training.messages import PARTS, CheckpointSaved, Evaluated, RunProgress, StepCompleted
from sightline.training.optimizer import clip_gradients, freeze, freeze_batchnorm, make_optimizer
from sightline.training.precision import Precision, pick_precision
from sightline.training.schedule import learning_rate
from sightline.training.step import backward, to_device
from sightline.training.timing import TimedCollective
from sightline.training.verify import Verifier


@dataclass
class Trainer:
    """One worker of a run.

    Attributes:
        context: Where rank 0 saves and reports, and what it is doing; see `WorkerContext`.
        evaluate: Scores the model, or its moving average, at the end of an epoch; higher `score` is better.
        verifier: Checks after every epoch that all workers have the same weights; None does not.
    """

    model: Detector
    loader: Loader
    config: TrainConfig
    collective: Collective
    context: WorkerContext
    evaluate: Callable[[Detector], dict[str, float]]
    verifier: Verifier | None = None

    def __post_init__(self) -> None:
        self.progress = RunProgress()
        self._last_images: list[str] = []
        freeze(self.model, self.config.freeze)
        self.optimizer = make_optimizer(self.model, self.config)
        device, _ = self._place()
        self.precision = Precision(pick_precision(self.config.precision, device), device)
        self.ema = MovingAverage(self.model, decay=self.config.ema) if self.config.ema else None
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._timed = TimedCollective(self.collective)
        self._saved = time.monotonic()
        share_batchnorm(self.model, self._timed if self.config.batchnorm == "sync" else SingleProcess())

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.loader.sampler.num_steps() * self.config.epochs

    def run(self) -> RunProgress:
        """Train to the end, from wherever `resume` left it."""
        while not self.progress.ended(self.config.epochs):
            self._train_epoch()
            self._end_epoch()
        return self.progress

    def _train_epoch(self) -> None:
        progress = self.progress
        self.model.train()
        if self.config.batchnorm == "frozen":
            freeze_batchnorm(self.model)
        batches = self.loader.batches(
            progress.epoch, rank=self.collective.rank, world_size=self.collective.size, start=progress.position
        )
        if self.verifier:
            self.verifier.begin(progress.epoch, start=progress.position)
        started = time.perf_counter()
        self.context.activity.enter("data")
        for batch in batches:
            self.seconds["data"] += time.perf_counter() - started
            self.context.activity.enter("step", step=progress.step)
            self._train_step(batch)
            self.context.activity.enter("data")
            stop, due = self._agree(self.context.should_stop(), self._save_is_due())
            if stop or due:
                self.save()
            if stop:
                raise Stopped
            started = time.perf_counter()

    def _agree(self, *asked: bool) -> list[bool]:
        """Whether any worker asks for something: all must do it after the same step."""
        return [bool(count) for count in self._timed.all_reduce(torch.tensor(asked, dtype=torch.int32)).tolist()]

    def _train_step(self, batch: Batch) -> None:
        started, progress, config = time.perf_counter(), self.progress, self.config
        # Dropout and the like draw from the global generator: keyed by the step, so that a resumed run draws the same.
        torch.manual_seed(config.seed * 1_000_003 + progress.step)
        device, dtype = self._place()
        work = to_device(batch, device=device, seed=config.seed, dtype=dtype)
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * learning_rate(config, progress.step, self.num_steps)
        self.optimizer.zero_grad()
        reduced = self._timed.seconds
        losses = backward(self.model, work, self._timed, precision=self.precision, parts=config.accumulate)
        computed, reduced = time.perf_counter(), self._timed.seconds - reduced
        self.precision.unscale(self.optimizer)
        norm = clip_gradients(self.model, config.clip, self._timed)
        self._last_images = batch.image_ids
        self._refuse_not_finite(losses, norm)
        self.precision.step(self.optimizer)
        progress.step += 1
        images = min(self.loader.options.batch, len(self.loader.source) - progress.position)
        progress.position += images
        if self.verifier:
            self.verifier.saw(batch)
        if self.ema:
            self.ema.update(progress.step)
        self.seconds["all_reduce"] += reduced
        self.seconds["forward_backward"] += computed - started - reduced
        self.seconds["optimizer"] += time.perf_counter() - computed
        self.context.send(StepCompleted(self.context.origin, progress, self.num_steps, losses, images, self.seconds))

    def _end_epoch(self) -> None:
        progress = self.progress
        if self.verifier:
            self.verifier.check(self.model, self.collective)
        progress.epoch, progress.position = progress.epoch + 1, 0
        scored = progress.epoch % self.config.evaluate_every == 0 or progress.epoch == self.config.epochs
        if scored:
            self._score()
        patience = self.config.patience
        progress.finished = bool(patience) and progress.epoch - progress.best_epoch >= patience
        due = self._agree(self._save_is_due())
        if scored or progress.finished or any(due):
            self.save()

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved > self.config.checkpoint_every_s

    def _score(self) -> None:
        started, progress = time.perf_counter(), self.progress
        self.context.activity.enter("evaluation")
        found = self._evaluate_average()
        scores = {name: value for name, value in found.items() if "/" not in name}
        self.seconds["evaluation"] += time.perf_counter() - started
        progress.history.append({"epoch": progress.epoch, "step": progress.step, **scores})
        self.context.send(Evaluated(self.context.origin, progress.epoch, scores))
        if scores["score"] > progress.best_score:
            progress.best_score, progress.best_epoch = scores["score"], progress.epoch
            progress.best_classes = {name: value for name, value in found.items() if "/" in name}
            self.save_best()

    def _evaluate_average(self) -> dict[str, float]:
        """Score the moving average in the model's place, and put the weights back."""
        self.model.eval()
        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()} if self.ema else None
        if self.ema:
            self.model.load_state_dict(self.ema.weights)
        try:
            return self.evaluate(self.model)
        finally:
            if own is not None:
                self.model.load_state_dict(own)

    def _refuse_not_finite(self, losses: dict[str, float], norm: float) -> None:
        if math.isfinite(losses["loss"]) and (math.isfinite(norm) or self.precision.may_overflow):
            return
        terms = ", ".join(f"{name} {value:g}" for name, value in losses.items())
        images = [image for share in self.collective.gather(self._last_images) for image in share]
        raise self._failure(f"the loss is not finite: {terms}, gradient norm {norm:g}", images)

    def _failure(self, what: str, images: list[str]) -> TrainingError:
        """An error that names the step and its images."""
        return TrainingError(
            f"{what}; at step {self.progress.step} (epoch {self.progress.epoch}), images "
            f"{', '.join(images[:8])}. The last checkpoint is whole: lower train.lr or look at these images"
        )

    def _place(self) -> tuple[torch.device, torch.dtype]:
        parameter = next(self.model.parameters())
        return parameter.device, parameter.dtype

    def save(self) -> None:
        """Write a checkpoint of the whole state; rank 0 does, for all have the same."""
        started = time.perf_counter()
        self.context.activity.enter("checkpoint")
        seen = self.verifier.seen_by_all(self.collective) if self.verifier else []
        if self.collective.rank == 0:
            self._write(self.context.checkpoints, seen)
        self.collective.barrier()
        self.seconds["checkpoint"] += time.perf_counter() - started
        self._saved = time.monotonic()
        self.context.send(CheckpointSaved(self.context.origin))

    def save_best(self) -> None:
        """Keep the best model apart from the checkpoints that come and go."""
        self.context.activity.enter("checkpoint")
        if self.collective.rank == 0:
            self._write(self.context.best)

    def _write(self, store: CheckpointStore, seen: Sequence[str] = ()) -> None:
        ema = self.ema.weights if self.ema else None
        optimizer = {**self.optimizer.state_dict(), "scaler": self.precision.state_dict()}
        try:
            # On the CPU: whoever keeps or loads it may have no GPU, or another one.
            weights, ema, optimizer = tree_map_only(Tensor, Tensor.cpu, (self.model.state_dict(), ema, optimizer))
            store.save(Checkpoint(weights, ema, optimizer, asdict(self.progress), list(seen)))
        except NotFiniteError as error:
            raise self._failure(str(error), self._last_images) from None

    def resume(self) -> None:
        """Go back to the newest whole checkpoint, if there is one; rank 0 finds it and hands it to the others."""
        found = self.context.checkpoints.load_latest() if self.collective.rank == 0 else None
        state = broadcast_tree(self.collective, found and (found.progress, found.seen))
        if state is None:
            return
        values, seen = state
        # One part after another: a worker holds no more than one of them besides its own.
        self.model.load_state_dict(broadcast_tree(self.collective, found and found.weights))
        average = broadcast_tree(self.collective, found and found.ema)
        if self.ema and average:
            for name, tensor in average.items():
                self.ema.weights[name].copy_(tensor)
        del average
        optimizer = broadcast_tree(self.collective, found and found.optimizer)
        self.precision.load_state_dict(optimizer.pop("scaler", {}))
        self.optimizer.load_state_dict(optimizer)
        self.progress = RunProgress(**values)
        if self.verifier:
            self.verifier.go_on(seen)
