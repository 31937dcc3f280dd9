"""The parts of a model that an engine may compile.

A family's inference is graphs, which are pure functions of tensors without choices that depend on the data, and plain
torch code around them: decoding, suppression, pooling, sorting. That code is the same whatever runs the graphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


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


IMAGES = Input("images", (2, 3, 256, 320), {0: "batch", 2: "height", 3: "width"}, torch.uint8)
"""What every family begins with: 8-bit images of any size, normalised inside the graph."""


def run_in_torch(graphs: Mapping[str, Graph]) -> Run:
    """Executes graphs as the modules that they are."""

    def run(name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = graphs[name].module(*tensors)
        return outputs

    return run
