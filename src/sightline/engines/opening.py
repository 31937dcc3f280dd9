"""A bundle, ready to be asked."""

from dataclasses import replace
from pathlib import Path

import torch

from sightline.data.decode import MAX_PIXELS
from sightline.engines.factory import open_engine
from sightline.models.bundle import Bundle
from sightline.models.letterbox import Letterbox
from sightline.models.predictor import Predictor


def open_predictor(
    bundle: Bundle,
    *,
    engine: str = "auto",
    threads: int | None = None,
    size: int | None = None,
    rectangular: bool = False,
    cache: Path | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Predictor:
    """Load a model and put an engine under it, on a GPU if there is one.

    Args:
        engine: `auto` takes the fastest that fits.
        threads: Of the engine; default: one a core.
        size: Side that images are fitted into, if not the one that the model was trained at.
        rectangular: Whether images are padded no more than the network needs, where the model allows it.
        cache: Where compiled forms are kept.
    """
    model = bundle.load(size=size)
    letterbox = model.preprocess()
    assert isinstance(letterbox, Letterbox)
    if rectangular and model.rectangular:
        letterbox = replace(letterbox, square=False)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    opened = open_engine(model.to(device), name=engine, threads=threads, cache=cache, key=bundle.hash)
    return Predictor(bundle, letterbox, opened, opened.name, device, max_pixels=max_pixels)
