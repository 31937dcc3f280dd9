"""The loader's worker processes, through torch's DataLoader; the only module of the data layer that imports torch.

A task is a rank's share of a step. Pixels come back in one block of shared memory for each batch, so that a batch
costs one copy and one file descriptor however many images it has.
"""

import math
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from sightline.config import LoaderConfig
from sightline.data.loader import Batch
from sightline.data.sampler import Share
from sightline.errors import SightlineError
from sightline.lifeline import exit_with_parent_process


@dataclass(frozen=True, slots=True)
class _Packed:
    """A batch whose pixels lie one image behind the other in `block`."""

    block: torch.Tensor
    shapes: list[tuple[int, ...]]
    batch: Batch


class _Tasks(Dataset[_Packed | SightlineError]):
    """What a worker does with a share; DataLoader calls it a dataset, and a share its index."""

    def __init__(self, prepare: Callable[[Share], Batch]) -> None:
        self._prepare = prepare

    def __getitem__(self, part: Share) -> _Packed | SightlineError:
        # Errors of our own travel as values: DataLoader would build them anew from a text.
        try:
            return _pack(self._prepare(part))
        except SightlineError as error:
            return error


def process_batches(
    prepare: Callable[[Share], Batch], shares: Iterator[Share], config: LoaderConfig
) -> Iterator[Batch]:
    """Prepare shares in `config.processes` processes; results come in the order of the shares."""
    loader: DataLoader[Any] = DataLoader(
        _Tasks(prepare),
        batch_size=None,
        sampler=shares,
        num_workers=config.processes,
        prefetch_factor=max(1, math.ceil(config.prefetch / config.processes)),
        collate_fn=_unchanged,
        multiprocessing_context=_context(),
        worker_init_fn=_start,
    )
    for result in loader:
        if isinstance(result, SightlineError):
            raise result
        yield _unpack(result)


def _start(_number: int) -> None:
    """DataLoader's own watchdog looks at the parent's id: with a forkserver, that is the server, which lives on."""
    exit_with_parent_process()


def _context() -> BaseContext:
    """Forking a process that has threads (torch's, Ray's, Arrow's) can hang it: a clean server is forked instead."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _pack(batch: Batch) -> _Packed:
    block = torch.empty(sum(image.size for image in batch.images), dtype=torch.uint8)
    if batch.images:
        np.concatenate([image.reshape(-1) for image in batch.images], out=block.numpy())
    return _Packed(block, [image.shape for image in batch.images], replace(batch, images=[]))


def _unpack(packed: _Packed) -> Batch:
    ends = np.cumsum([math.prod(shape) for shape in packed.shapes], dtype=np.int64)
    flat = np.split(packed.block.numpy(), ends)
    images = [pixels.reshape(shape) for pixels, shape in zip(flat, packed.shapes, strict=False)]
    return replace(packed.batch, images=images)


def _unchanged(packed: Any) -> Any:
    return packed
