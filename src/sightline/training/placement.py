"""How a run is spread over this machine, for the record."""

import torch

from sightline.config import Config
from sightline.data.parallel import num_cores
from sightline.tracking.machine import Placement
from sightline.training.devices import plan_devices
from sightline.training.precision import num_gpus


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
    return config.train.threads or max(1, num_cores() // workers_here)
