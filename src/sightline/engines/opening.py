"""A bundle, ready to be asked."""

from pathlib import Path

import torch

from sightline.data.decode import MAX_PIXELS
from sightline.engines.factory import choose_engine, choose_engine_for_onnx, open_engine
from sightline.models.bundle import Bundle
from sightline.models.graph import is_onnx
from sightline.models.predictor import Predictor
from sightline.models.preprocessor import make_preprocessor
from sightline.models.yolo_onnx import NAME as YOLO_ONNX


def open_predictor(
    bundle: Bundle,
    *,
    engine: str = "auto",
    threads: int | None = None,
    lanes: int = 1,
    bfloat16: bool = False,
    size: int | None = None,
    device: str | None = None,
    rectangular: bool | None = None,
    reduced_decode: bool | None = None,
    floor: float | None = None,
    cache: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Predictor:
    """Load a model and put an engine under it.

    Args:
        engine: `auto` takes the fastest that fits.
        threads: Of the engine; default: one a core.
        lanes: How many callers there will be at once, who share the threads.
        bfloat16: Whether graphs run in it even if that leaves the tolerance.
        size: Side that images are fitted into, if not the one that the model was trained at.
        device: Default: a GPU if there is one.
        rectangular: Whether images are padded no more than the network needs, where the model allows it; default: as
            the bundle says.
        reduced_decode: Whether large JPEGs are decoded at reduced scale; default: as the bundle says.
        floor: Nobody will ask for detections below this score, so models that can need not sort them out.
        cache: Where compiled forms are kept.
    """
    model = bundle.load(size=size)
    said = bundle.info.preprocessing.overridden(rectangular=rectangular, reduced_decode=reduced_decode)
    preprocessor = make_preprocessor(model, said, max_pixels=max_pixels)
    lowest = getattr(model, "score_threshold", None)
    if floor is not None and isinstance(lowest, float):
        model.score_threshold = max(lowest, floor)  # type: ignore[assignment]
    if is_onnx(model.graphs()):
        device = "cpu"
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    opened = open_engine(
        model.to(place), name=engine, threads=threads, lanes=lanes, bfloat16=bfloat16, cache=cache, key=bundle.hash
    )
    return Predictor(bundle, preprocessor, opened, opened.name, place)


def resolve_engine(bundle: Bundle, engine: str, device: str) -> str:
    """The engine that `auto` means for a model on a device, without loading either."""
    if engine != "auto":
        return engine
    chosen = choose_engine_for_onnx() if bundle.info.model == YOLO_ONNX else choose_engine(device)
    return chosen[0]
