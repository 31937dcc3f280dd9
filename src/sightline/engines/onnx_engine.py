"""ONNX Runtime, on the CPU."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sightline.engines.engine import Engine
from sightline.models.detector import Detector
from sightline.models.graph import open_session, run_session


class OnnxEngine(Engine):
    """Runs ONNX graphs wherever ONNX Runtime is installed."""

    name = "onnxruntime"

    def __init__(self, model: Detector, form: Mapping[str, bytes | Path], *, threads: int) -> None:
        super().__init__(model, threads=threads)
        self._sessions = {
            name: open_session(str(content) if isinstance(content, Path) else content, threads=threads)
            for name, content in form.items()
        }

    def run(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See `Engine.run`."""
        return run_session(self._sessions[name], *tensors)
