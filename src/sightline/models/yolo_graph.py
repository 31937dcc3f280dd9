"""The graph in a YOLO file: what it takes, and how it is made to take 8-bit images like all of ours."""

from dataclasses import dataclass
from typing import Any

from sightline.errors import FormatError
from sightline.models.yolo_file import graphs_of, onnx_library

_FLOAT, _UINT8, _HALF = 1, 2, 10
"""Types of elements, as ONNX numbers them."""


@dataclass(frozen=True)
class YoloInput:
    """What a graph takes: B x 3 x H x W; None where any number will do."""

    name: str
    kind: int
    batch: int | None
    height: int | None
    width: int | None

    @property
    def side(self) -> int | None:
        """Side of the square that it takes; None where it takes any."""
        return self.height

    @property
    def takes_bytes(self) -> bool:
        """Whether it takes 8-bit images."""
        return self.kind == _UINT8


def input_of(model: Any, shown: str) -> YoloInput:
    """What the graph of a ModelProto takes.

    Raises:
        FormatError: It is not one batch of RGB images, or images of one size that is not square.
    """
    weights = {tensor.name for tensor in model.graph.initializer}  # Old files list them among the inputs.
    inputs = [given for given in model.graph.input if given.name not in weights]
    kind = inputs[0].type.tensor_type if len(inputs) == 1 else None
    axes = [axis.dim_value if axis.dim_value > 0 else None for axis in kind.shape.dim] if kind else []
    if kind is None or len(axes) != 4 or axes[1] not in (3, None) or kind.elem_type not in (_FLOAT, _UINT8, _HALF):
        shapes = ", ".join(f"{given.name[:40]} {_shape(given)}" for given in inputs[:4])
        raise FormatError(f"{shown!r} takes {shapes or 'nothing'}; expected images, batch x 3 x height x width, float")
    batch, _, height, width = axes
    if height != width:
        raise FormatError(
            f"{shown!r} takes images of {width} x {height} pixels only: export it with dynamic axes, or for a square"
        )
    return YoloInput(inputs[0].name, kind.elem_type, batch, height, width)


def check_output(model: Any, shown: str, *, num_classes: int) -> None:
    """Raise unless a graph says that it gives one tensor, batch x (4 + classes) x places; what it leaves open may be.

    Raises:
        FormatError: It gives something else: masks, objectness, boxes that were suppressed already.
    """
    outputs = model.graph.output
    axes = [axis.dim_value for axis in outputs[0].type.tensor_type.shape.dim] if len(outputs) == 1 else []
    known = len(outputs) == 1 and outputs[0].type.tensor_type.HasField("shape")
    if len(outputs) != 1 or (known and (len(axes) != 3 or axes[1] not in (0, 4 + num_classes))):
        shapes = ", ".join(f"{given.name[:40]} {_shape(given)}" for given in outputs[:4])
        raise FormatError(
            f"{shown!r} gives {shapes}; expected batch x {4 + num_classes} x places (a box and {num_classes} classes), "
            "as YOLOv8 and YOLO11 detectors do that were exported without NMS. If the number of classes is another, "
            "give the right --names"
        )


def take_bytes(model: Any, given: YoloInput) -> None:
    """Put in front of a graph that takes 0 to 1 what makes that of 8-bit images, in place."""
    helper, graph = onnx_library().helper, model.graph
    taken = {name for inner in graphs_of(graph) for node in inner.node for name in (*node.input, *node.output)}
    cast, scaled, factor = (_unused(name, taken) for name in ("images_cast", "images_scaled", "images_factor"))
    for inner in graphs_of(graph):
        _rename_inputs(inner, given.name, scaled)
    first = [
        helper.make_node("Cast", ["images"], [cast], name=cast, to=given.kind),
        helper.make_node("Mul", [cast, factor], [scaled], name=scaled),
    ]
    others = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *others])
    graph.initializer.append(helper.make_tensor(factor, given.kind, [], [1 / 255]))
    old = next(one for one in graph.input if one.name == given.name)
    old.name, old.type.tensor_type.elem_type = "images", _UINT8


def _rename_inputs(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _shape(value: Any) -> str:
    return " x ".join(str(axis.dim_value or axis.dim_param or "?")[:20] for axis in value.type.tensor_type.shape.dim)
