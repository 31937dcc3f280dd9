"""OpenVINO, on the CPU."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.engines.engine import Engine
from sightline.errors import MissingExtraError
from sightline.models.detector import Detector


class OpenVinoEngine(Engine):
    """Runs ONNX graphs, or OpenVINO's own, on Intel, AMD and ARM processors.

    In single precision: left to itself OpenVINO computes in bfloat16 where the processor can, which moves scores by
    more than the tolerance.
    """

    name = "openvino"

    def __init__(self, model: Detector, form: Mapping[str, bytes | Path], *, threads: int) -> None:
        super().__init__(model, threads=threads)
        self._compiled = {name: _compile(content, threads) for name, content in form.items()}
        self._own = threading.local()

    def run(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Engine.run`."""
        request = self._request(name)
        inputs = [tensor.contiguous().numpy() for tensor in tensors]
        outputs = request.infer(inputs, share_inputs=True, share_outputs=True)
        return tuple(torch.from_numpy(outputs[place]) for place in range(len(outputs)))

    def _request(self, name: str) -> Any:
        """This thread's own: its buffers hold the outputs until the next call."""
        requests: dict[str, Any] = self._own.__dict__.setdefault("requests", {})
        if name not in requests:
            requests[name] = self._compiled[name].create_infer_request()
        return requests[name]


def save_openvino(content: bytes, file: Path) -> None:
    """Write an ONNX graph in OpenVINO's own form: the .xml and, beside it, a .bin."""
    openvino = _library()
    openvino.save_model(openvino.Core().read_model(content), file, compress_to_fp16=False)


def _library() -> Any:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "engines") from None
    return openvino


def _compile(content: bytes | Path, threads: int) -> Any:
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,  # Several workers on one machine would be pinned to the same cores.
    }
    core = _library().Core()
    return core.compile_model(core.read_model(content), "CPU", settings)
