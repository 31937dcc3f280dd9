"""torch itself: BatchNorm folded into convolutions, channels last."""

import torch
from torch import Tensor

from sightline.engines.engine import Engine, copy_for_inference
from sightline.engines.fuse import fuse_batchnorm
from sightline.errors import ConfigError
from sightline.models.detector import Detector
from sightline.models.graph import is_onnx, run_in_torch


class TorchEngine(Engine):
    """Runs anywhere that torch does, on the model's device."""

    name = "torch"

    def __init__(self, model: Detector, *, threads: int) -> None:
        if is_onnx(model.graphs()):
            raise ConfigError("engine 'torch' cannot run a model that is an ONNX file: take onnxruntime or openvino")
        own = copy_for_inference(model)
        fuse_batchnorm(own)
        own = own.to(memory_format=torch.channels_last)
        super().__init__(own, threads=threads, torch_threads=threads)
        self._run = run_in_torch(own.graphs())

    def run(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Engine.run`."""
        return self._run(name, *(_channels_last(tensor) for tensor in tensors))


def _channels_last(tensor: Tensor) -> Tensor:
    """Images in the layout that decides on that of everything after them; other inputs as they are."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dtype == torch.uint8 else tensor
