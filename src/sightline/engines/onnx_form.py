"""A model's graphs as ONNX, which both ONNX Runtime and OpenVINO read; made once and kept."""

import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.engines.form_cache import load_form, private_directory, store_form
from sightline.errors import MissingExtraError
from sightline.models.inference import ModelSource

if TYPE_CHECKING:
    from sightline.models.detector import Detector
    from sightline.models.graph import Graph

_LAYOUT = 2  # To be raised when graphs change, so that forms of earlier versions are not taken for theirs.
_PACKAGES = ("torch", "torchvision", "onnx", "onnxscript")


def onnx_form(source: ModelSource, *, cache: Path | None = None) -> Mapping[str, bytes]:
    """Each graph as the bytes of an ONNX file; from the cache if it is there and whole, and then without torch.

    Args:
        cache: Where compiled forms are kept; None keeps nothing.
    """
    if source.onnx is not None:
        return source.onnx
    if cache is None or source.key is None:
        return export_onnx(source.load())
    place = private_directory(cache) / source.key / f"onnx-{_LAYOUT}-{_versions()}"
    form = load_form(place)
    if form is None:
        form = export_onnx(source.load())
        store_form(place, form)
    return form


def export_onnx(model: "Detector") -> dict[str, bytes]:
    """Each graph as the bytes of an ONNX file, with dynamic batch, height and width."""
    from sightline.engines.torch_engine import copy_for_inference

    own = copy_for_inference(model).float().cpu()
    return {name: _export(graph) for name, graph in own.graphs().items()}


def _export(graph: "Graph") -> bytes:
    import torch

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
