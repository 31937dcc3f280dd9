"""All engines by name. A new engine is one file and one line here."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from sightline.data.parallel import num_cores
from sightline.engines.engine import Engine
from sightline.engines.onnx_form import onnx_form
from sightline.errors import ConfigError, MissingExtraError
from sightline.models.factory import YOLO_ONNX
from sightline.models.inference import InferenceModel, ModelSource

if TYPE_CHECKING:
    from sightline.models.bundle import Bundle

EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]
ENGINES: tuple[str, ...] = get_args(EngineName)


def open_engine(
    source: ModelSource,
    *,
    name: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    streams: int = 1,
    bfloat16: bool = False,
    cache: Path | None = None,
) -> Engine:
    """Something that detects what the model detects, quicker; the model itself is left as it is.

    Args:
        name: One of `ENGINES`; "auto" takes the fastest that fits.
        device: "cpu" or "cuda".
        threads: How many to use; None means one per core.
        streams: How many callers there will be at once. The threads are divided among them, where the engine can.
        bfloat16: Whether all graphs run in it, also those that leave the tolerance so; OpenVINO only.
        cache: Where compiled forms are kept; None makes them anew.

    Raises:
        ConfigError: The name is not known, or the engine does not run on the device, or not in bfloat16.
        MissingExtraError: The engine's package is not installed.
    """
    threads = num_cores() if threads is None else threads
    if threads < 1:
        raise ConfigError(f"threads is {threads}: give 1 or more, or leave it out for one per core")
    if name == "auto":
        name, _ = choose_engine_for_onnx() if source.onnx else choose_engine(device)
    elif name in ("onnxruntime", "openvino") and device != "cpu" and not source.onnx:
        raise ConfigError(f"engine {name!r} runs on the CPU and the model is on {device!r}: take torch, or the CPU")
    if bfloat16 and name != "openvino":
        raise ConfigError(f"engine {name!r} does not run in bfloat16: take openvino, or leave the precision out")
    return _open(source, name, device=device, threads=threads, streams=streams, bfloat16=bfloat16, cache=cache)


def resolve_engine(bundle: "Bundle", name: str, device: str) -> tuple[str, str]:
    """The engine that `auto` means for a model on a device, and why, without loading either."""
    if name not in ENGINES:
        raise _unknown(name)
    if name != "auto":
        return name, ""
    return choose_engine_for_onnx() if bundle.info.model == YOLO_ONNX else choose_engine(device)


def choose_engine(device: str) -> tuple[str, str]:
    """The fastest engine that is installed for a device, and why."""
    if device != "cpu":
        return "torch", f"the model is on {device!r}"
    for name in ("openvino", "onnxruntime"):
        if all(find_spec(package) for package in (name, "onnx", "onnxscript")):
            return name, "the fastest on CPUs that is installed"
    return "torch", "nothing faster is installed: pip install 'sightline[engines]'"


def choose_engine_for_onnx() -> tuple[str, str]:
    """The fastest installed engine for a model that came as an ONNX file, and why.

    Raises:
        MissingExtraError: There is none.
    """
    for name in ("openvino", "onnxruntime"):
        if find_spec(name):
            return name, "the fastest for an ONNX file that is installed"
    raise MissingExtraError("onnxruntime", "engines")


def _open(
    source: ModelSource, name: str, *, device: str, threads: int, streams: int, bfloat16: bool, cache: Path | None
) -> Engine:
    match name:
        case "torch":
            from sightline.engines.torch_engine import TorchEngine

            return TorchEngine(source.load(), device=device, threads=threads)
        case "onnxruntime":
            from sightline.engines.onnx_runtime import OnnxEngine

            return OnnxEngine(own_inference(source), onnx_form(source, cache=cache), threads=threads)
        case "openvino":
            from sightline.engines.openvino_engine import OpenVinoEngine

            form = onnx_form(source, cache=cache)
            return OpenVinoEngine(own_inference(source), form, threads=threads, streams=streams, bfloat16=bfloat16)
        case _:
            raise _unknown(name)


def _unknown(name: str) -> ConfigError:
    return ConfigError(f"engine {name!r} is not known: take one of {', '.join(ENGINES)}")


def own_inference(source: ModelSource) -> InferenceModel:
    """The code around the graphs, of the engine's own; where it is torch, in the form that is quick in inference."""
    if not source.inference.uses_torch:
        return copy.copy(source.inference)
    from sightline.engines.torch_engine import copy_for_inference

    return copy_for_inference(source.load()).inference
