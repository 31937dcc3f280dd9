"""Graphs in 8-bit integers run on every processor."""

import numpy as np
import onnx
import torch
from lively import make_images, make_lively

from sightline.engines.int8 import quantize_form
from sightline.engines.onnx_form import export_onnx


def test_products_of_two_pairs_fit_in_16_bits() -> None:
    """Processors without VNNI add two products of an activation (up to 255) and a weight in 16 bits."""
    model = make_lively("nano")
    form = quantize_form(export_onnx(model), model, make_images(2, 64, 96).split(1))
    for content in form.values():
        weights = [
            onnx.numpy_helper.to_array(tensor)
            for tensor in onnx.load_from_string(content).graph.initializer
            if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
        ]
        assert weights
        largest = max(np.abs(weight.astype(int)).max() for weight in weights)
        assert 2 * 255 * largest <= torch.iinfo(torch.int16).max
