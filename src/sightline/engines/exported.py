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
from sightline.engines.engine import PIXEL_TOLERANCE, SCORE_TOLERANCE, Engine, copy_for_inference
from sightline.engines.onnx_engine import OnnxEngine
from sightline.engines.openvino_engine import OpenVinoEngine, save_openvino
from sightline.errors import DamagedError, ExistsError, NotFoundError
from sightline.models.detector import Detector
from sightline.models.info import Preprocessing
from sightline.models.letterbox import Letterbox
from sightline.models.preprocessor import make_preprocessor

ExportName = Literal["onnx", "openvino"]
DESCRIPTION = "engine.json"


def write_export(
    directory: Path,
    form: Mapping[str, bytes],
    model: Detector,
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
        said = {"form": to, "precision": precision, **(about or {}), **_describe(model, preprocessing, files)}
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


def open_exported(model: Detector, directory: Path, *, threads: int) -> Engine:
    """An engine that runs exported files, with the model's own code around them."""
    if not (directory / DESCRIPTION).is_file():
        raise NotFoundError(f"there is no exported model at {str(directory)!r}: `sightline export MODEL` makes one")
    said = json.loads((directory / DESCRIPTION).read_text("utf-8"))
    files = {name: directory / graph["file"] for name, graph in said["graphs"].items()}
    if set(files) != set(model.graphs()):
        raise DamagedError(f"{str(directory)!r} holds {', '.join(files)}, not the graphs of this model")
    own = copy_for_inference(model)
    match said["form"]:
        case "onnx":
            return OnnxEngine(own, files, threads=threads)
        case "openvino":
            return OpenVinoEngine(own, files, threads=threads)
        case other:
            raise DamagedError(f"{str(directory)!r} says it is {other!r}; expected onnx or openvino")


def _corner(letterbox: Letterbox) -> str | None:
    return None if letterbox.centred else "upper left"


def _describe(model: Detector, preprocessing: Preprocessing | None, files: Mapping[str, str]) -> dict[str, Any]:
    preprocessor = make_preprocessor(model, preprocessing)
    letterbox = preprocessor.letterbox
    graphs = {
        name: {
            "file": files[name],
            "inputs": {
                given.name: {"example": list(given.shape), "type": str(given.dtype), "dynamic": given.dynamic}
                for given in graph.inputs
            },
            "outputs": list(graph.outputs),
        }
        for name, graph in model.graphs().items()
    }
    return {
        "preprocessing": {
            "reduced_decode": preprocessor.reduced_decode,
            "letterbox": {**asdict(letterbox), "fill": FILL, "corner": _corner(letterbox), "resampling": "bilinear"},
            "images": "batch x 3 x height x width, RGB, uint8; normalised inside the graph",
        },
        "graphs": graphs,
        "tolerance": {"score": SCORE_TOLERANCE, "pixels": PIXEL_TOLERANCE},
    }
