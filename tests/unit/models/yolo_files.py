"""A tiny network with the output of YOLOv8, in ONNX: it finds every 32 x 32 cell that is red, green or blue."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

CELL = 32
NAMES = ("red", "green", "blue")
COLORS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
NOTED = {
    "author": "Ultralytics",
    "license": "AGPL-3.0 License (https://ultralytics.com/license)",
    "names": str(dict(enumerate(NAMES))),
    "stride": "32",
    "task": "detect",
    "imgsz": "[128, 128]",
    "end2end": "False",
}
Axis = int | str


def make_yolo(
    *,
    batch: Axis = "batch",
    height: Axis = "height",
    width: Axis = "width",
    noted: dict[str, str] | None = None,
    kind: int = TensorProto.FLOAT,
    name: str = "images",
) -> onnx.ModelProto:
    """Means of cells, from 0.5 to 1 stretched to scores from 0 to 1; boxes are the cells, found by counting them."""

    def number(label: str, value: float) -> TensorProto:
        return helper.make_tensor(label, kind, [], [value])

    numbers = [number("zero", 0), number("half", 0.5), number("one", 1), number("two", 2), number("cell", CELL)]
    axes = [helper.make_tensor(f"axis{axis}", TensorProto.INT64, [], [axis]) for axis in (2, 3)]
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [0, 4 + len(NAMES), -1])
    nodes = [
        helper.make_node("AveragePool", [name], ["means"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        helper.make_node("Mul", ["means", "two"], ["doubled"]),
        helper.make_node("Sub", ["doubled", "one"], ["signed"]),
        helper.make_node("Relu", ["signed"], ["scores"]),
        helper.make_node("ReduceMax", ["scores"], ["best"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["best", "zero"], ["zeros"]),
        helper.make_node("Add", ["zeros", "one"], ["ones"]),
        helper.make_node("Mul", ["ones", "cell"], ["sides"]),
    ]
    for axis in (3, 2):
        nodes += [
            helper.make_node("CumSum", ["ones", f"axis{axis}"], [f"count{axis}"]),
            helper.make_node("Sub", [f"count{axis}", "half"], [f"middle{axis}"]),
            helper.make_node("Mul", [f"middle{axis}", "cell"], [f"centre{axis}"]),
        ]
    nodes += [
        helper.make_node("Concat", ["centre3", "centre2", "sides", "sides", "scores"], ["maps"], axis=1),
        helper.make_node("Reshape", ["maps", "shape"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "yolo",
        [helper.make_tensor_value_info(name, kind, [batch, 3, height, width])],
        [helper.make_tensor_value_info("output0", kind, [batch, 4 + len(NAMES), "places"])],
        [*numbers, *axes, shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, NOTED if noted is None else noted)
    return model


def write_yolo(file: Path, **options: Any) -> Path:
    file.write_bytes(make_yolo(**options).SerializeToString())
    return file


def make_scene(width: int, height: int, cells: dict[tuple[int, int], int]) -> NDArray[np.uint8]:
    """Black, with cells of a colour at (left, top) in pixels."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for (left, top), label in cells.items():
        pixels[top : top + CELL, left : left + CELL] = COLORS[label]
    return pixels
