"""Graphs in 8-bit integers run on every processor."""

import numpy as np
import onnx
import torch
from lively import make_canvases, make_lively

from sightline.engines.int8 import _depthwise_layers, quantize_form
from sightline.engines.onnx_form import export_onnx


def quantized(family: str) -> list[onnx.ModelProto]:
    model = make_lively(family)
    form = quantize_form(export_onnx(model), model.source(), list(make_canvases(2, 64, 96)))
    return [onnx.load_from_string(content) for content in form.values()]


def integer_weights(graph: onnx.ModelProto) -> dict[str, np.ndarray]:
    tensors = graph.graph.initializer
    return {one.name: onnx.numpy_helper.to_array(one) for one in tensors if one.data_type == onnx.TensorProto.INT8}


def test_products_of_two_pairs_fit_in_16_bits() -> None:
    """Processors without VNNI add two products of an activation (up to 255) and a weight in 16 bits."""
    for graph in quantized("nano"):
        weights = [weight for weight in integer_weights(graph).values() if weight.ndim > 1]
        assert weights
        largest = max(np.abs(weight.astype(int)).max() for weight in weights)
        assert 2 * 255 * largest <= torch.iinfo(torch.int16).max


def test_depthwise_convolutions_stay_in_float() -> None:
    (graph,) = quantized("ssdlite")
    kernels = [weight for weight in integer_weights(graph).values() if weight.ndim == 4]
    assert kernels
    assert all(weight.shape[1] > 1 for weight in kernels)


def test_a_convolution_whose_weights_the_graph_computes_is_not_taken_for_a_depthwise_one() -> None:
    helper = onnx.helper
    images, output = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("images", "out"))
    stored = onnx.numpy_helper.from_array(np.zeros((4, 1, 3, 3), np.float32), "stored")
    nodes = [
        helper.make_node("Conv", ["images", "stored"], ["between"], name="stored weights", group=4),
        helper.make_node("Identity", ["stored"], ["computed"]),
        helper.make_node("Conv", ["between", "computed"], ["out"], name="computed weights", group=4),
    ]
    model = helper.make_model(helper.make_graph(nodes, "network", [images], [output], [stored]))
    assert _depthwise_layers(model) == ["stored weights"]
