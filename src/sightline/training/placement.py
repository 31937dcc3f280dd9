"""How a run is spread over this machine, for the record."""

import torch

from sightline.config import Config
from sightline.data.parallel import num_cores
from sightline.tracking.machine import Placement
from sightline.training.precision import pick_device


def local_placement(config: Config, *, workers: int, launcher: str) -> Placement:
    """Workers that share this machine."""
    device = pick_device(config.train.device)
    on_gpu = device.type == "cuda"
    return Placement(
        workers=workers,
        threads=threads_of(config, workers),
        devices=(torch.cuda.get_device_name(device) if on_gpu else device.type,),
        backend="none" if workers == 1 else "nccl" if on_gpu else "gloo",
        launcher=launcher,
    )


def threads_of(config: Config, workers_here: int) -> int:
    """Threads of each worker: workers times threads never exceed the cores."""
    return config.train.threads or max(1, num_cores() // workers_here)
