"""ONNX Runtime, on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.engines.engine import Engine
from sightline.errors import MissingExtraError
from sightline.models.detector import Detector


class OnnxEngine(Engine):
    """Runs ONNX graphs wherever ONNX Runtime is installed."""

    name = "onnxruntime"

    def __init__(self, model: Detector, form: Mapping[str, bytes | Path], *, threads: int) -> None:
        super().__init__(model, threads=threads)
        self._sessions = {name: _open(content, threads) for name, content in form.items()}

    def run(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Engine.run`."""
        session = self._sessions[name]
        given = zip(session.get_inputs(), tensors, strict=True)
        outputs = session.run(None, {own.name: tensor.contiguous().numpy() for own, tensor in given})
        return tuple(torch.from_numpy(output) for output in outputs)


def _open(content: bytes | Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "engines") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that wait for the next graph would take the cores from torch's code between the graphs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
