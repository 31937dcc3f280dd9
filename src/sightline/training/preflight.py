"""Whether a run fits the machines it would train on: cores, memory, /dev/shm and disk, checked before workers start."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sightline.cluster.gpus import num_gpus
from sightline.cluster.local_node import current_nodes, local_node
from sightline.cluster.pools import check_loader
from sightline.cluster.preflight import PROCESS_MEMORY, Demand, check_disk, check_workers
from sightline.config import Config, LoaderConfig, TrainConfig
from sightline.data.dataset import Dataset
from sightline.models.detector import Detector
from sightline.models.factory import make_model
from sightline.tracking.machine import Placement
from sightline.training.devices import plan_devices
from sightline.training.launch import pick_launcher
from sightline.training.optimizer import freeze
from sightline.training.shared_memory import memory_size
from sightline.workspace import BEST, CHECKPOINTS

_CHECKPOINTS_ON_DISK = 4
"""Two that are kept, the best one, and one that is being written."""
_WORKSPACE = 64 << 20
"""Bytes that kernels, the loader and the loss take with any model."""
_LOADER_PROCESS = 128 << 20
"""Private bytes of a process of the loader, which shares what it has imported with others."""
_MULTIPLE = 32  # Sides that every family takes.
_MEASURED_IMAGES = 2  # BatchNorm in training refuses a single value per channel.


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of a model in single precision.

    Attributes:
        weights: Parameters and buffers.
        trained: Parameters that have a gradient.
        activations: Tensors that the network keeps of one image for its backward pass.
        pixels: One image as the loader hands it over.
    """

    weights: int
    trained: int
    activations: int
    pixels: int


def check_cores(config: Config) -> None:
    """Refuse far too many workers before anything is loaded, unless they are for a cluster not yet connected to.

    Raises:
        ConfigError: There are more workers than the cores can carry.
    """
    workers = config.workers
    launcher = pick_launcher(workers)
    elsewhere = workers.address not in (None, "local") or "RAY_ADDRESS" in os.environ
    if launcher == "joined" or (launcher == "ray" and elsewhere):
        return
    nodes = current_nodes() if launcher == "ray" else [local_node()]
    check_workers(Demand(workers.count), nodes, oversubscribe=workers.oversubscribe)
    check_loader(config, workers=workers.count, nodes=nodes)


def check_training(
    config: Config, placement: Placement, directory: Path, images: Dataset, *, on_note: Callable[[str], None]
) -> None:
    """Refuse a run that does not fit; with Ray, while connected to the cluster.

    Args:
        config: Resolved.
        directory: Of the run.
        images: What it trains on.

    Raises:
        ConfigError: It does not fit; says what to change.
    """
    launcher = pick_launcher(config.workers)
    train = config.train.model_copy(update={"batch": max(1, min(config.train.batch, len(images)))})
    model = make_model(train.model, num_classes=len(images.classes), size=train.size)
    freeze(model, train.freeze)
    memory = measure_model(model)
    kept = sum(file.stat().st_size for part in (CHECKPOINTS, BEST) for file in (directory / part).rglob("*.*"))
    needed = _CHECKPOINTS_ON_DISK * checkpoint_bytes(memory, train) - kept  # A resumed run replaces what it has.
    check_disk(needed, shutil.disk_usage(directory).free, str(directory))
    # Inside this process, or in those of a torchrun, what every process takes is taken already.
    base = 0 if launcher in ("inline", "joined") else PROCESS_MEMORY
    on_gpu = placement.devices != ("cpu",)
    each = base + worker_memory(memory, train, config.loader, workers=placement.workers, on_gpu=on_gpu)
    if launcher == "ray":
        demand, nodes = Demand(placement.workers, each), current_nodes()
    else:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launcher == "joined" else placement.workers
        option = "--nproc-per-node" if launcher == "joined" else "--workers"
        share = -(-train.batch // placement.workers)
        shared = (memory_size(here) if here > 1 else 0) + here * loader_blocks(config.loader) * share * memory.pixels
        demand, nodes = Demand(here, each, shared, option), [local_node()]
        if note := plan_devices(train.device, workers=here, gpus=num_gpus()).note:
            on_note(note)
    check_loader(config, workers=demand.workers, nodes=nodes)
    for warning in check_workers(demand, nodes, oversubscribe=config.workers.oversubscribe):
        on_note(warning)


def worker_memory(
    model: ModelMemory, train: TrainConfig, loader: LoaderConfig, *, workers: int, on_gpu: bool = False
) -> int:
    """Bytes of main memory that training takes in one worker and in its loader's processes, beside the worker itself.

    Within a quarter of what was measured, see docs/benchmarks/notes.md.
    """
    share = -(-train.batch // workers)
    at_once = -(-share // train.accumulate)
    # Rank 0 has the weights that it was given, and writes the optimizer's state to memory before it is saved.
    copies = model.weights + _optimizer_bytes(model, train)
    waiting = 2 * share * model.pixels
    if loader.processes:  # Each prepares a batch; those that are ready lie in /dev/shm, which is memory too.
        at_work = loader.processes * (_LOADER_PROCESS + share * model.pixels)
        waiting += PROCESS_MEMORY + at_work + loader_blocks(loader) * share * model.pixels
    if on_gpu:
        return _WORKSPACE + copies + waiting
    # Workers decide later what `auto` means.
    activations = model.activations * at_once // (2 if train.precision in ("bfloat16", "float16") else 1)
    gradients = 2 * model.trained if workers > 1 else model.trained  # Joined into one message.
    return _WORKSPACE + checkpoint_bytes(model, train) + copies + gradients + activations * 5 // 4 + waiting


def loader_blocks(loader: LoaderConfig) -> int:
    """Batches of one worker that lie in /dev/shm at once: those that its loader's processes are ahead by, and its own.

    >>> loader_blocks(LoaderConfig(processes=0)), loader_blocks(LoaderConfig(processes=2, prefetch=3))
    (0, 5)
    """
    if not loader.processes:
        return 0
    return loader.processes * max(1, -(-loader.prefetch // loader.processes)) + 1


def checkpoint_bytes(model: ModelMemory, train: TrainConfig) -> int:
    """Bytes of a checkpoint: weights, their moving average, and the optimizer's state."""
    return model.weights * (2 if train.ema else 1) + _optimizer_bytes(model, train)


def _optimizer_bytes(model: ModelMemory, train: TrainConfig) -> int:
    return model.trained * (2 if train.optimizer == "adamw" else 1)


def measure_model(model: Detector) -> ModelMemory:
    """What a model takes, from a forward pass on the meta device, which computes shapes only. The model is used up."""
    model = model.train().to("meta")
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    network = next(iter(model.graphs().values())).module  # The one that takes images.
    side = -(-model.size // _MULTIPLE) * _MULTIPLE
    images = torch.zeros(_MEASURED_IMAGES, 3, side, side, dtype=torch.uint8, device="meta")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    held = sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)
    return ModelMemory(
        weights=sum(tensor.nbytes for tensor in model.state_dict().values()),
        trained=sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad),
        activations=held // _MEASURED_IMAGES,
        pixels=3 * side**2,
    )
