"""A model's graphs as ONNX, which both ONNX Runtime and OpenVINO read; made once and kept."""

import warnings
from importlib import metadata
from pathlib import Path

import torch

from sightline.engines.engine import copy_for_inference
from sightline.engines.form_cache import load_form, private_directory, store_form
from sightline.errors import MissingExtraError
from sightline.models.detector import Detector
from sightline.models.graph import Graph, OnnxModule, is_onnx

_LAYOUT = 2  # To be raised when graphs change, so that forms of earlier versions are not taken for theirs.
_PACKAGES = ("torch", "torchvision", "onnx", "onnxscript")


def onnx_form(model: Detector, *, cache: Path | None = None, key: str | None = None) -> dict[str, bytes]:
    """Each graph as the bytes of an ONNX file; from the cache if it is there and whole.

    Args:
        cache: Where compiled forms are kept; None keeps nothing.
        key: The hash of the model; None keeps nothing.
    """
    if cache is None or key is None or is_onnx(model.graphs()):
        return export_onnx(model)
    place = private_directory(cache) / key / f"onnx-{_LAYOUT}-{_versions()}"
    found = load_form(place)
    if found is None:
        found = export_onnx(model)
        store_form(place, found)
    return found


def export_onnx(model: Detector) -> dict[str, bytes]:
    """Each graph as the bytes of an ONNX file, with dynamic batch, height and width."""
    own = copy_for_inference(model).float().cpu()
    return {name: _export(graph) for name, graph in own.graphs().items()}


def _export(graph: Graph) -> bytes:
    if isinstance(graph.module, OnnxModule):
        return graph.module.content
    try:
        import onnxscript  # noqa: F401 - torch's exporter asks for it only after it has worked for a while.
    except ImportError:
        raise MissingExtraError("onnxscript", "engines") from None
    axes = tuple(dict.fromkeys(given.dynamic, torch.export.Dim.DYNAMIC) for given in graph.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of names of axes and of what is deprecated inside the exporter.
        program = torch.onnx.export(
            graph.module,
            tuple(given.example() for given in graph.inputs),
            dynamo=True,
            verbose=False,
            dynamic_shapes=axes,
            input_names=[given.name for given in graph.inputs],
            output_names=list(graph.outputs),
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


def _versions() -> str:
    return "-".join(_version(package) for package in _PACKAGES)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(package, "engines") from None
