"""Who starts the workers of a run, and where: one line in `open_launcher` for each."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

from sightline.cluster.address import find_cluster
from sightline.config import Config, WorkersConfig
from sightline.errors import ConfigError, MissingExtraError, TrainingError
from sightline.tracking.machine import Placement
from sightline.training.collective import Alone, Collective, LostWorkers, broadcast_tree
from sightline.training.job import Desk, Job, Outcome, work
from sightline.training.keeper import Keeper
from sightline.training.placement import local_placement
from sightline.training.precision import place_worker
from sightline.training.process_group import joined

LauncherName = Literal["inline", "local", "ray", "joined"]
"""`joined` means that another launcher, such as a plain `torchrun`, has started this process as one of the workers."""


class Launcher(Protocol):
    """Starts workers and looks after them; the run's directory is the driver's to keep."""

    @property
    def placement(self) -> Placement:
        """How the run is spread, for the record."""
        ...

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end, telling the keeper; raises `Stopped` when it was asked to stop."""
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

    def __init__(self, config: Config) -> None:
        self.placement = local_placement(config, workers=1, launcher="inline")

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end."""
        return work(job, Alone(), Desk.in_directory(directory, keeper.hear, keeper.should_stop))


class JoinedLauncher:
    """This process is rank 0 of workers that another launcher started."""

    def __init__(self, config: Config) -> None:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        workers = int(os.environ["WORLD_SIZE"])
        self.placement = local_placement(config, workers=workers, launcher="torchrun", workers_here=here)

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end."""
        outcome, _ = train_joined(job, Desk.in_directory(directory, keeper.hear, keeper.should_stop))
        return outcome


def train_joined(job: Job, desk: Desk) -> tuple[Outcome, Job]:
    """Work among processes that another launcher started, as the environment says; all do the job of rank 0."""
    here, local_rank = _local_workers(os.environ)
    device, backend = place_worker(job.config.train.device, local_rank=local_rank, workers_here=here)
    try:
        with joined(backend, activity=desk.activity) as collective:
            job = _as_rank_0(job, collective, place=f"{device.type} over {backend}")
            outcome = work(job, collective, desk, workers_here=here, device=device)
            collective.barrier()
            return outcome, job
    except LostWorkers as error:
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


def _as_rank_0(job: Job, collective: Collective, *, place: str) -> Job:
    """The job with rank 0's settings: what was left open depends on what a machine has, and must not differ.

    Args:
        place: What this worker computes on, and how it communicates.
    """
    dataset = job.dataset.info
    settings = broadcast_tree(collective, job.config.model_dump(mode="json"))
    for what, values in (
        ("the content of the dataset", collective.gather(f"{dataset.name} ({dataset.content_hash[:12]})")),
        ("the device and backend", collective.gather(place)),
    ):
        if others := [f"rank {rank}: {value}" for rank, value in enumerate(values) if value != values[0]]:
            raise TrainingError(f"{what} must be the same on all workers; rank 0: {values[0]}, {', '.join(others[:8])}")
    return replace(job, config=Config.model_validate(settings))
