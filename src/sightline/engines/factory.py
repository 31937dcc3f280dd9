"""All engines by name. A new engine is one file and one line here."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from sightline.data.parallel import num_cores
from sightline.engines.engine import Engine, copy_for_inference
from sightline.engines.onnx_engine import OnnxEngine
from sightline.engines.onnx_form import onnx_form
from sightline.engines.openvino_engine import OpenVinoEngine
from sightline.engines.torch_engine import TorchEngine
from sightline.errors import ConfigError, MissingExtraError
from sightline.models.detector import Detector
from sightline.models.graph import is_onnx

EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]
ENGINES: tuple[str, ...] = get_args(EngineName)


def open_engine(
    model: Detector,
    *,
    name: str = "auto",
    threads: int | None = None,
    lanes: int = 1,
    bfloat16: bool = False,
    cache: Path | None = None,
    key: str | None = None,
) -> Engine:
    """Something that detects what the model detects, quicker; the model itself is left as it is.

    Args:
        name: One of `ENGINES`; "auto" takes the fastest that fits, and says why in `Engine.reason`.
        threads: How many to use; None means one for each core.
        lanes: How many callers there will be at once. The threads are divided among them, where the engine can.
        bfloat16: Whether all graphs run in it, also those that leave the tolerance so; OpenVINO only.
        cache: Where compiled forms are kept; None makes them anew.
        key: The hash of the model, under which they are kept.

    Raises:
        ConfigError: The name is not known, or the engine does not run on the model's device, or not in bfloat16.
        MissingExtraError: The engine's package is not installed.
    """
    threads = num_cores() if threads is None else threads
    if threads < 1:
        raise ConfigError(f"threads is {threads}: give 1 or more, or leave it out for one a core")
    given_as_onnx, reason = is_onnx(model.graphs()), ""
    device = "cpu" if given_as_onnx else next(model.parameters()).device.type
    if name == "auto":
        name, reason = choose_engine_for_onnx() if given_as_onnx else choose_engine(device)
    elif name in ("onnxruntime", "openvino") and device != "cpu":
        raise ConfigError(f"engine {name!r} runs on the CPU and the model is on {device!r}: take torch, or model.cpu()")
    if bfloat16 and name != "openvino":
        raise ConfigError(f"engine {name!r} does not run in bfloat16: take openvino, or leave the precision out")
    engine = _open(model, name, threads=threads, lanes=lanes, bfloat16=bfloat16, cache=cache, key=key)
    engine.reason = reason
    return engine


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
    model: Detector, name: str, *, threads: int, lanes: int, bfloat16: bool, cache: Path | None, key: str | None
) -> Engine:
    match name:
        case "torch":
            return TorchEngine(model, threads=threads)
        case "onnxruntime":
            form = onnx_form(model, cache=cache, key=key)
            return OnnxEngine(copy_for_inference(model), form, threads=threads)
        case "openvino":
            form = onnx_form(model, cache=cache, key=key)
            return OpenVinoEngine(copy_for_inference(model), form, threads=threads, lanes=lanes, bfloat16=bfloat16)
        case _:
            raise ConfigError(f"engine {name!r} is not known: take one of {', '.join(ENGINES)}")
