"""Graphs in 8-bit integers: weights by channel, activations by what calibration images were seen to need.

Weights take 7 of the 8 bits. Processors without VNNI add the products of two pairs in 16 bits, and saturate: a file
with weights of 8 bits scores well on the machine where it was made, and badly on such a one.

Depthwise convolutions stay in float: they are a small part of the work, and the part of MobileNets that loses most.

ONNX Runtime's own post-training quantization; OpenVINO reads what it writes. Intel's tool, NNCF, reports its use to its
makers unless it is told not to, so it is not used here.
"""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.data.parallel import num_cores
from sightline.engines.engine import Engine, to_contiguous
from sightline.engines.onnx_runtime import OnnxEngine
from sightline.errors import ConfigError, MissingExtraError
from sightline.models.inference import Array, ModelSource

_LAYERS = ["Conv", "Gemm", "MatMul"]
Inputs = tuple[NDArray[Any], ...]


def quantize_form(
    form: Mapping[str, bytes], source: ModelSource, canvases: Sequence[NDArray[np.uint8]]
) -> dict[str, bytes]:
    """The graphs of a form in 8-bit integers.

    Args:
        form: Each graph as the bytes of an ONNX file.
        source: What the form was made of.
        canvases: Images that look like those to come, H x W x 3 each.
    """
    if not canvases:
        raise ConfigError("calibration needs images and there are none: give a dataset that has some")
    seen = record_inputs(OnnxEngine(source.inference, form, threads=num_cores()), canvases)
    exact = {} if source.onnx else {name: graph.exact for name, graph in source.load().graphs().items()}
    return {name: _quantize(content, exact.get(name, ()), seen[name]) for name, content in form.items()}


def record_inputs(engine: Engine, canvases: Sequence[NDArray[np.uint8]]) -> dict[str, list[Inputs]]:
    """What each graph is given while an engine detects."""
    seen: dict[str, list[Inputs]] = {}

    def recorded(name: str, *inputs: Array) -> tuple[Array, ...]:
        seen.setdefault(name, []).append(tuple(map(to_contiguous, inputs)))
        return engine.run(name, *inputs)

    for canvas in canvases:
        engine.model.detect(recorded, np.stack([canvas]).transpose(0, 3, 1, 2))
    return seen


def _quantize(content: bytes, exact: tuple[str, ...], inputs: Sequence[Inputs]) -> bytes:
    try:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise MissingExtraError("onnxruntime", "engines") from None
    with tempfile.TemporaryDirectory(prefix="sightline-int8-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, prepared, written = (Path(place) / name for name in ("float.onnx", "prepared.onnx", "int8.onnx"))
        source.write_bytes(content)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        network = onnx.load(prepared)
        names = _input_names(network)
        quantization.quantize_static(
            prepared,
            written,
            _Reader([dict(zip(names, given, strict=True)) for given in inputs]),
            op_types_to_quantize=_LAYERS,
            per_channel=True,
            reduce_range=True,  # 7 bits
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=[
                *_last_layers(network),
                *_depthwise_layers(network),
                *_layers_of(network, exact),
            ],
        )
        return written.read_bytes()


def _input_names(model: Any) -> list[str]:
    """Names of what a graph is given; old files list the weights among them."""
    weights = {weight.name for weight in model.graph.initializer}
    return [given.name for given in model.graph.input if given.name not in weights]


def _last_layers(model: Any) -> list[str]:
    """Layers that no other layer comes after: what they say is the result, and a step of 8 bits would show in it."""
    producers = {output: node for node in model.graph.node for output in node.output}
    last: list[str] = []
    waiting = [output.name for output in model.graph.output]
    while waiting:
        node = producers.get(waiting.pop())
        if node is None:
            continue
        if node.op_type in _LAYERS:
            last.append(node.name)
        else:
            waiting.extend(node.input)
    return last


def _depthwise_layers(model: Any) -> list[str]:
    """Convolutions of single channels."""
    shapes = {weight.name: weight.dims for weight in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type == "Conv"]
    return [node.name for node in layers if _groups(node) > 1 and shapes.get(node.input[1], (0, 0))[1] == 1]


def _groups(layer: Any) -> int:
    return next((int(attribute.i) for attribute in layer.attribute if attribute.name == "group"), 1)


def _layers_of(model: Any, beginnings: tuple[str, ...]) -> list[str]:
    """Layers whose weights have names that begin so."""
    layers = [node for node in model.graph.node if node.op_type in _LAYERS]
    return [node.name for node in layers if any(name.startswith(beginnings) for name in node.input)]


class _Reader:
    """Gives ONNX Runtime one set of inputs after another."""

    def __init__(self, inputs: Sequence[Mapping[str, Any]]) -> None:
        self._inputs: Iterator[Mapping[str, Any]] = iter(inputs)

    def get_next(self) -> Mapping[str, Any] | None:
        """The next set; None after the last."""
        return next(self._inputs, None)
