"""A model's graphs as files for others to run: ONNX or OpenVINO's own form, and a JSON that says what they are."""

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from sightline.data.geometry import FILL
from sightline.data.manifest import write_manifest
from sightline.engines.engine import PIXEL_TOLERANCE, SCORE_TOLERANCE, Engine
from sightline.engines.factory import own_inference
from sightline.engines.onnx_runtime import OnnxEngine
from sightline.engines.openvino_engine import OpenVinoEngine, save_openvino
from sightline.errors import DamagedError, ExistsError, NotFoundError
from sightline.models.inference import ModelSource
from sightline.models.info import Preprocessing
from sightline.models.letterbox import Letterbox
from sightline.models.preprocessor import make_preprocessor

ExportName = Literal["onnx", "openvino"]
DESCRIPTION = "engine.json"


def write_export(
    directory: Path,
    form: Mapping[str, bytes],
    source: ModelSource,
    *,
    to: ExportName,
    precision: Literal["float32", "int8"] = "float32",
    preprocessing: Preprocessing | None = None,
    about: Mapping[str, Any] | None = None,
    others: Mapping[str, bytes] | None = None,
) -> None:
    """Write the files of a form; the directory is complete or absent.

    Args:
        form: Each graph as the bytes of an ONNX file.
        preprocessing: What the model's bundle says; None for a model that has none.
        about: What else is to be said, such as the names of the classes.
        others: More files that make a bundle of it, by name; then all of them are listed in a manifest.

    Raises:
        ExistsError: The directory is there already.
    """
    refuse_existing(directory)
    partial = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.tmp")
    partial.mkdir(parents=True)
    suffix = {"onnx": "onnx", "openvino": "xml"}[to]
    # What a bundle holds of it already is not written twice.
    held = {content: name for name, content in (others or {}).items() if to == "onnx"}
    files = {name: held.get(content, f"{name}.{suffix}") for name, content in form.items()}
    try:
        for name, content in form.items():
            match to:
                case "onnx":
                    (partial / files[name]).write_bytes(content)
                case "openvino":
                    save_openvino(content, partial / files[name])
        said = {"form": to, "precision": precision, **(about or {}), **_describe(source, preprocessing, form, files)}
        (partial / DESCRIPTION).write_text(json.dumps(said, indent=2) + "\n", "utf-8")
        for name, content in (others or {}).items():
            (partial / name).write_bytes(content)
        if others:
            write_manifest(partial)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(directory: Path) -> None:
    """Raise if something would be overwritten."""
    if directory.exists():
        raise ExistsError(f"{str(directory)!r} is there already: remove it or give another --output")


def open_exported(source: ModelSource, directory: Path, *, threads: int) -> Engine:
    """An engine that runs exported files, with the model's own code around them."""
    if not (directory / DESCRIPTION).is_file():
        raise NotFoundError(f"there is no exported model at {str(directory)!r}: `sightline export MODEL` makes one")
    said = json.loads((directory / DESCRIPTION).read_text("utf-8"))
    files = {name: directory / graph["file"] for name, graph in said["graphs"].items()}
    graphs = source.onnx if source.onnx is not None else source.load().graphs()
    if set(files) != set(graphs):
        raise DamagedError(f"{str(directory)!r} holds {', '.join(files)}, not the graphs of this model")
    own = own_inference(source)
    match said["form"]:
        case "onnx":
            return OnnxEngine(own, files, threads=threads)
        case "openvino":
            return OpenVinoEngine(own, files, threads=threads)
        case other:
            raise DamagedError(f"{str(directory)!r} says it is {other!r}; expected onnx or openvino")


def _corner(letterbox: Letterbox) -> str | None:
    return None if letterbox.centred else "upper left"


def _describe(
    source: ModelSource, preprocessing: Preprocessing | None, form: Mapping[str, bytes], files: Mapping[str, str]
) -> dict[str, Any]:
    preprocessor = make_preprocessor(source.inference, preprocessing)
    letterbox = preprocessor.letterbox
    return {
        "preprocessing": {
            "reduced_decode": preprocessor.reduced_decode,
            "letterbox": {**asdict(letterbox), "fill": FILL, "corner": _corner(letterbox), "resampling": "bilinear"},
            "images": "batch x 3 x height x width, RGB, uint8; normalised inside the graph",
        },
        "graphs": {name: {"file": files[name], **_signature(content)} for name, content in form.items()},
        "tolerance": {"score": SCORE_TOLERANCE, "pixels": PIXEL_TOLERANCE},
    }


def _signature(content: bytes) -> dict[str, Any]:
    """Names, types and shapes of a graph's inputs, and names of its outputs; null stands for an axis of any size."""
    import onnx

    graph = onnx.load_model_from_string(content).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {}
    for given in graph.input:
        if given.name not in constants:
            tensor = given.type.tensor_type
            shape = [axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim]
            inputs[given.name] = {"type": onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, "shape": shape}
    return {"inputs": inputs, "outputs": [output.name for output in graph.output]}
