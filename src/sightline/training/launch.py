"""Who starts the workers of a run, and where: one line in `open_launcher` for each."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, Protocol

from sightline.cluster.address import find_cluster
from sightline.config import Config, WorkersConfig
from sightline.data.dataset import Dataset
from sightline.errors import ConfigError, MissingExtraError, TrainingError
from sightline.models.weights import Weights
from sightline.tracking.machine import Placement
from sightline.training.attempt import AttemptFence
from sightline.training.collective import Collective, SingleProcess, WorkerLostError, broadcast_tree
from sightline.training.context import WorkerContext, run_context
from sightline.training.job import Job, work
from sightline.training.messages import Finished, Message, Outcome
from sightline.training.monitor import RunMonitor
from sightline.training.placement import local_placement
from sightline.training.precision import place_worker
from sightline.training.process_group import joined
from sightline.training.validation import Parts, divide

LauncherName = Literal["inline", "local", "ray", "joined"]
"""`joined` means that another launcher, such as a plain `torchrun`, has started this process as one of the workers."""


class Launcher(Protocol):
    """Starts workers, transports their messages to the monitor, and does what it asks for."""

    @property
    def placement(self) -> Placement:
        """How the run is spread, for the record."""
        ...

    @property
    def num_supervised(self) -> int:
        """Workers that the monitor supervises; none where one of them is this process."""
        ...

    def train(self, job: Job, directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> Outcome:
        """Train to the end.

        Raises:
            Stopped: It was asked to stop, and has saved itself.
        """
        ...


def open_launcher(config: Config) -> AbstractContextManager[Launcher]:
    """The launcher that the settings and the environment ask for."""
    match pick_launcher(config.workers):
        case "inline":
            return nullcontext(InlineLauncher(config))
        case "joined":
            return nullcontext(JoinedLauncher(config))
        case "local":
            from sightline.training.local_launcher import LocalLauncher

            return nullcontext(LocalLauncher(config))
        case "ray":
            try:
                from sightline.training.ray_launcher import on_ray
            except ModuleNotFoundError:
                raise MissingExtraError("ray", "ray") from None
            return on_ray(config)


def pick_launcher(config: WorkersConfig, environment: Mapping[str, str] = os.environ) -> LauncherName:
    """What `auto` means here, and whether what was asked for can be.

    Raises:
        ConfigError: The settings contradict each other.
    """
    if is_joined(environment):
        started = int(environment["WORLD_SIZE"])
        if config.launcher != "auto" or config.count not in (1, started):
            raise ConfigError(
                f"this process is one of {started} that torchrun started: leave out --workers and --launcher"
            )
        return "joined"
    if config.launcher == "auto":
        return "ray" if config.address or find_cluster(environment) else "local" if config.count > 1 else "inline"
    if config.launcher == "inline" and config.count > 1:
        raise ConfigError(f"--launcher inline is one worker in this process; {config.count} workers need local or ray")
    if config.address and config.launcher != "ray":
        raise ConfigError(f"--address is that of a Ray cluster; --launcher {config.launcher} does not use one")
    return config.launcher


def is_joined(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that somebody else, such as torchrun, has started."""
    return "RANK" in environment and int(environment.get("WORLD_SIZE", "1")) > 1


def joined_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of a process that torchrun started; 0 for any other."""
    return int(environment["RANK"]) if is_joined(environment) else 0


class InlineLauncher:
    """One worker, in this process."""

    num_supervised = 0

    def __init__(self, config: Config) -> None:
        self.placement = local_placement(config, workers=1, launcher="inline")

    def train(self, job: Job, directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> Outcome:
        """See `Launcher.train`."""
        context = _context_here(directory, monitor, should_stop)
        return _finished(work(job, SingleProcess(), context), context)


class JoinedLauncher:
    """This process is rank 0 of workers that another launcher started."""

    num_supervised = 0

    def __init__(self, config: Config) -> None:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        workers = int(os.environ["WORLD_SIZE"])
        self.placement = local_placement(config, workers=workers, launcher="torchrun", workers_here=here)

    def train(self, job: Job, directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> Outcome:
        """See `Launcher.train`."""
        context = _context_here(directory, monitor, should_stop)
        outcome, _ = train_joined(job.parts.train, job.config, job.weights, context, parts=job.parts)
        return _finished(outcome, context)


def _context_here(directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> WorkerContext:
    """The context of rank 0 in the driver's own process."""
    attempt = AttemptFence(directory).advance(should_stop)
    monitor.begin_attempt(attempt, time.monotonic())

    def send(message: Message) -> None:
        monitor.handle(message, time.monotonic())

    return run_context(directory, attempt, send=send, should_stop=should_stop)


def _finished(outcome: Outcome, context: WorkerContext) -> Outcome:
    context.send(Finished(context.origin, outcome))
    return outcome


def train_joined(
    dataset: Dataset, config: Config, weights: Weights | None, context: WorkerContext, *, parts: Parts | None = None
) -> tuple[Outcome, Config]:
    """Work among processes that another launcher started, as the environment says; all do the job of rank 0.

    Args:
        config: Resolved on rank 0; the others take what that has.
        parts: The dataset as rank 0 has divided it; the others divide theirs by the same settings.
    """
    here, local_rank = _local_workers(os.environ)
    device, backend = place_worker(config.train.device, local_rank=local_rank, workers_here=here)
    try:
        with joined(backend, activity=context.activity) as collective:
            config = _of_rank_0(config, dataset, collective, place=f"{device.type} over {backend}")
            job = Job(parts or divide(dataset, config.train), config, weights)
            outcome = work(job, collective, context, workers_here=here, device=device)
            collective.barrier()
            return outcome, config
    except WorkerLostError as error:
        raise TrainingError(f"another worker was lost, and torchrun begins again if it may: {error}") from error


def _local_workers(environment: Mapping[str, str]) -> tuple[int, int]:
    """How many workers this machine has, and which of them this process is."""
    local_rank, here = int(environment.get("LOCAL_RANK", "0")), environment.get("LOCAL_WORLD_SIZE")
    if local_rank and here is None:
        raise ConfigError(
            f"LOCAL_RANK is {local_rank}, and LOCAL_WORLD_SIZE, the number of workers on this machine, is not set: set "
            "it as torchrun does"
        )
    return int(here or 1), local_rank


def _of_rank_0(config: Config, dataset: Dataset, collective: Collective, *, place: str) -> Config:
    """Rank 0's settings: what was left open depends on what a machine has, and must not differ.

    Args:
        place: What this worker computes on, and how it communicates.
    """
    info = dataset.info
    settings = broadcast_tree(collective, config.model_dump(mode="json"))
    for what, values in (
        ("the content of the dataset", collective.gather(f"{info.name} ({info.content_hash[:12]})")),
        ("the device and backend", collective.gather(place)),
    ):
        if others := [f"rank {rank}: {value}" for rank, value in enumerate(values) if value != values[0]]:
            raise TrainingError(f"{what} must be the same on all workers; rank 0: {values[0]}, {', '.join(others[:8])}")
    return Config.model_validate(settings)
