"""ONNX Runtime, on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.engines.engine import Engine, to_contiguous
from sightline.errors import MissingExtraError
from sightline.models.inference import Array, InferenceModel


class OnnxEngine(Engine):
    """Runs ONNX graphs wherever ONNX Runtime is installed."""

    name = "onnxruntime"

    def __init__(self, model: InferenceModel, form: Mapping[str, bytes | Path], *, threads: int) -> None:
        super().__init__(model, threads=threads)
        self._sessions = {
            name: open_session(str(content) if isinstance(content, Path) else content, threads=threads)
            for name, content in form.items()
        }

    def run(self, name: str, *inputs: Array) -> tuple[NDArray[Any], ...]:
        """See `Engine.run`."""
        return run_session(self._sessions[name], *map(to_contiguous, inputs))


def open_session(content: bytes | str, *, threads: int) -> Any:
    """An ONNX file, as bytes or by its path, in ONNX Runtime on the CPU."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "engines") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that wait for the next graph would take the cores from the code between the graphs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, *inputs: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The outputs of a session, given its inputs in order."""
    given = zip(session.get_inputs(), inputs, strict=True)
    return tuple(map(np.asarray, session.run(None, {own.name: array for own, array in given})))
