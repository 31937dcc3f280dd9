"""The parts of a model that an engine may compile.

A family's inference consists of graphs, which are pure functions of tensors without control flow that depends on the
data, and plain code around them (`InferenceModel`): decoding, suppression, pooling, sorting. That code is the same
whatever runs the graphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.models.inference import Array, Run


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
        exact: Prefixes of the names of weights whose layers stay in float when the graph is quantized to 8 bits.
    """

    module: nn.Module
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    exact: tuple[str, ...] = ()


IMAGES = Input("images", (2, 3, 256, 320), {0: "batch", 2: "height", 3: "width"}, torch.uint8)
"""What every family begins with: 8-bit images of any size, normalised inside the graph."""


def run_in_torch(graphs: Mapping[str, Graph], device: torch.device) -> Run:
    """Executes graphs as the modules that they are."""

    def run(name: str, *inputs: Array) -> tuple[Tensor, ...]:
        tensors = (torch.as_tensor(value).to(device, non_blocking=True) for value in inputs)
        with torch.inference_mode():
            outputs: tuple[Tensor, ...] = graphs[name].module(*tensors)
        return outputs

    return run
