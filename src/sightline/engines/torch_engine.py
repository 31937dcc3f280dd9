"""torch itself: BatchNorm folded into convolutions, channels last."""

import copy
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from sightline.engines.engine import Engine, limited_torch
from sightline.engines.fuse import fuse_batchnorm
from sightline.models.detector import Detector
from sightline.models.graph import run_in_torch
from sightline.models.inference import Array
from sightline.models.roi_align import QuickRoIAlign


class TorchEngine(Engine):
    """Runs anywhere that torch does."""

    name = "torch"

    def __init__(self, model: Detector, *, device: str = "cpu", threads: int) -> None:
        own = copy_for_inference(model).to(device)
        fuse_batchnorm(own)
        own = own.to(memory_format=torch.channels_last)
        super().__init__(own.inference, threads=threads, torch_threads=threads)
        self._run = run_in_torch(own.graphs(), own.device)

    def run(self, name: str, *inputs: Array) -> tuple[Tensor, ...]:
        """See `Engine.run`."""
        return self._run(name, *(_channels_last(torch.as_tensor(value)) for value in inputs))

    def _limited(self) -> AbstractContextManager[None]:
        return limited_torch(self._torch_threads)


def copy_for_inference(model: Detector) -> Detector:
    """A copy that an engine may change, with what is quicker and differs by rounding."""
    own = copy.deepcopy(model).eval().requires_grad_(False)
    for module in own.modules():
        if isinstance(module, QuickRoIAlign):
            module.always = True
    return own


def _channels_last(tensor: Tensor) -> Tensor:
    """Images in the layout that decides on that of everything after them; other inputs as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dtype == torch.uint8 else tensor
