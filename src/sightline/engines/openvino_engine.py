"""OpenVINO, on the CPU."""

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sightline.engines.engine import Engine, single_threaded_torch, to_contiguous
from sightline.errors import ConfigError, MissingExtraError
from sightline.models.inference import Array, InferenceModel

# Held while a graph runs for the first time. OpenVINO's bindings make a static of theirs then, with Python's lock given
# away in between: two threads at once wait for each other for ever, one for the static, one for Python.
_FIRST = threading.Lock()


class OpenVinoEngine(Engine):
    """Runs ONNX graphs, or OpenVINO's own, on Intel, AMD and ARM processors.

    In single precision, and in bfloat16 only graphs of which it is known that they stay within the tolerance, where the
    processor has instructions for it, or where it was asked for. Left to itself OpenVINO takes it for all, which moves
    scores by more.
    """

    name = "openvino"

    def __init__(
        self,
        model: InferenceModel,
        form: Mapping[str, bytes | Path],
        *,
        threads: int,
        streams: int = 1,
        bfloat16: bool = False,
    ) -> None:
        super().__init__(model, threads=threads)
        core = _core()
        capable = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if bfloat16 and not capable:
            raise ConfigError("this processor has no instructions for bfloat16: leave the precision out")
        self._compiled = {}
        for name, content in form.items():
            settings = _settings(threads, streams, bfloat16=capable and (bfloat16 or name in model.bfloat16))
            self._compiled[name] = core.compile_model(core.read_model(content), "CPU", settings)
        self._own = threading.local()
        self._known: set[str] = set()
        # Set once for all streams: each would set and restore the number of the process around its calls.
        if streams > 1 and model.uses_torch:
            self._changed.enter_context(single_threaded_torch())

    def run(self, name: str, *inputs: Array) -> tuple[NDArray[Any], ...]:
        """See `Engine.run`."""
        if name in self._known:
            return self._infer(name, inputs)
        with _FIRST:
            outputs = self._infer(name, inputs)
        self._known.add(name)
        return outputs

    def _infer(self, name: str, inputs: tuple[Array, ...]) -> tuple[NDArray[Any], ...]:
        request = self._request(name)
        outputs = request.infer(list(map(to_contiguous, inputs)), share_inputs=True, share_outputs=True)
        return tuple(outputs[index] for index in range(len(outputs)))

    def _request(self, name: str) -> Any:
        """This thread's own: its buffers hold the outputs until the next call."""
        requests: dict[str, Any] = self._own.__dict__.setdefault("requests", {})
        if name not in requests:
            requests[name] = self._compiled[name].create_infer_request()
        return requests[name]


def save_openvino(content: bytes, file: Path) -> None:
    """Write an ONNX graph in OpenVINO's own form: the .xml and, beside it, a .bin."""
    _library().save_model(_core().read_model(content), file, compress_to_fp16=False)


def _core() -> Any:
    return _core_of(_library())


@cache
def _core_of(library: Any) -> Any:
    """The one of this process, kept for ever.

    Each brings the thread that makes it a stack for signals, and puts the one before it back when it goes. Of two that
    do not go in reverse order, the second puts back what the first has freed: the next signal ends the process.
    """
    return library.Core()


def _library() -> Any:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("openvino", "engines") from None
    return openvino


def _settings(threads: int, streams: int, *, bfloat16: bool) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
        "ENABLE_CPU_PINNING": False,  # Several workers on one machine would be pinned to the same cores.
    }
