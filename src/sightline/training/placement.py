"""How a run is spread over this machine, for the record."""

import math
import os
from collections.abc import Callable

import torch

from sightline.cluster.gpus import num_gpus
from sightline.cluster.local_node import busy_cores
from sightline.config import Config
from sightline.data.parallel import num_cores
from sightline.tracking.machine import Placement
from sightline.training.devices import plan_devices
from sightline.training.messages import RunProgress

_IGNORED = 0.25


def local_placement(config: Config, *, workers: int, launcher: str, workers_here: int | None = None) -> Placement:
    """Workers that share this machine.

    Args:
        workers_here: How many of them are on this machine; default: all.
    """
    here = workers_here or workers
    plan = plan_devices(config.train.device, workers=here, gpus=num_gpus())
    names = (name if name == "cpu" else torch.cuda.get_device_name(name) for name in plan.devices)
    return Placement(
        workers=workers,
        threads=threads_of(config, here),
        devices=tuple(dict.fromkeys(names)),
        backend="none" if workers == 1 else plan.backend.rpartition(":")[2],
        launcher=launcher,
    )


def threads_of(config: Config, workers_here: int) -> int:
    """Threads of each worker: workers times threads never exceed the cores."""
    return config.train.threads or share_threads(num_cores(), workers_here)


def settle_threads(config: Config, before: RunProgress, *, on_note: Callable[[str], None]) -> Config:
    """The number of threads for workers on this machine, decided once so that workers that restart keep it.

    A run that goes on with as many workers keeps it too: sums depend on it to the last bit.

    A core that another process keeps busy is left out: at the end of every parallel region all threads wait for the
    one that shares its core, for as long as the scheduler lets the other process run.
    """
    if config.train.threads:
        return config
    cores, workers = num_cores(), config.workers.count
    if before.threads and before.workers == workers and before.threads <= cores:
        return config.model_copy(update={"train": config.train.model_copy(update={"threads": before.threads})})
    busy = busy_cores()
    threads = share_threads(cores, workers, machine_cores=os.cpu_count() or cores, busy=busy)
    if threads < share_threads(cores, workers):
        on_note(
            f"threads: {threads} for each worker, because other processes keep about {busy:.1f} of "
            f"{os.cpu_count()} cores busy; --set train.threads={share_threads(cores, workers)} takes all"
        )
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})


def share_threads(cores: int, workers: int, *, machine_cores: int = 0, busy: float = 0.0) -> int:
    """Threads of each worker, at least one.

    Args:
        cores: That this process may use.
        workers: That share them.
        machine_cores: All of the machine, of which a container or a CPU mask may leave fewer.
        busy: Cores of the machine that other processes keep busy; less than a quarter of one is ignored.
    """
    spare = max(cores, machine_cores) - math.ceil(busy - _IGNORED)
    return max(1, min(cores, spare) // workers)
