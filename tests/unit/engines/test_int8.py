"""Graphs in 8-bit integers run on every processor."""

import numpy as np
import onnx
import torch
from lively import make_images, make_lively

from sightline.engines.int8 import quantize_form
from sightline.engines.onnx_form import export_onnx


def quantized(family: str) -> list[onnx.ModelProto]:
    model = make_lively(family)
    form = quantize_form(export_onnx(model), model, make_images(2, 64, 96).split(1))
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
