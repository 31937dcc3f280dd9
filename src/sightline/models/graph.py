"""The parts of a model that an engine may compile.

A family's inference is graphs, which are pure functions of tensors without choices that depend on the data, and plain
torch code around them: decoding, suppression, pooling, sorting. That code is the same whatever runs the graphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sightline.errors import MissingExtraError


class Run(Protocol):
    """Executes a graph by its name."""

    def __call__(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The graph's outputs, in its order."""
        ...


@dataclass(frozen=True)
class Input:
    """An input of a graph.

    Attributes:
        shape: An example, with sizes that an exporter will not take for constants.
        dynamic: Names of the axes that may have any size.
    """

    name: str
    shape: tuple[int, ...]
    dynamic: Mapping[int, str]
    dtype: torch.dtype = torch.float32

    def example(self) -> Tensor:
        """A tensor of this kind."""
        return torch.zeros(self.shape, dtype=self.dtype)


@dataclass(frozen=True)
class Graph:
    """A part of a model that an engine may compile.

    Attributes:
        module: Takes the inputs, gives a tuple of the outputs.
        bfloat16: Whether what is found stays within the tolerance of engines when layers run in bfloat16; a test with
            trained models says so.
        exact: Beginnings of the names of weights whose layers stay in float when the graph is made of 8-bit integers.
    """

    module: nn.Module
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    bfloat16: bool = False
    exact: tuple[str, ...] = ()


class OnnxModule(nn.Module):
    """A graph that came as an ONNX file: engines run the file as it is, and torch cannot.

    Called like any module it goes through ONNX Runtime, so that a model of such graphs can be scored and compared.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content
        # Callers ask a model's first parameter for its device and precision.
        self.place = nn.Parameter(torch.zeros(0), requires_grad=False)
        self._session: Any = None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the file, on the CPU."""
        if self._session is None:
            self._session = open_session(self.content, threads=torch.get_num_threads())
        return run_session(self._session, *(tensor.cpu() for tensor in tensors))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # Copies open their own.


def is_onnx(graphs: Mapping[str, Graph]) -> bool:
    """Whether these are ONNX files, which only some engines run, on the CPU."""
    return any(isinstance(graph.module, OnnxModule) for graph in graphs.values())


def open_session(content: bytes | str, *, threads: int) -> Any:
    """An ONNX file, as bytes or by its path, in ONNX Runtime on the CPU."""
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


def run_session(session: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The outputs of a session, given its inputs in order."""
    given = zip(session.get_inputs(), tensors, strict=True)
    outputs = session.run(None, {own.name: tensor.contiguous().numpy() for own, tensor in given})
    return tuple(torch.from_numpy(output) for output in outputs)


IMAGES = Input("images", (2, 3, 256, 320), {0: "batch", 2: "height", 3: "width"}, torch.uint8)
"""What every family begins with: 8-bit images of any size, normalised inside the graph."""


def run_in_torch(graphs: Mapping[str, Graph]) -> Run:
    """Executes graphs as the modules that they are."""

    def run(name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = graphs[name].module(*tensors)
        return outputs

    return run
