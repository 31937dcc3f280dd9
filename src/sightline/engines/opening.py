"""A bundle loaded for inference."""

from pathlib import Path

from sightline.engines.factory import open_engine
from sightline.engines.settings import InferenceSettings
from sightline.models.bundle import Bundle
from sightline.models.predictor import Predictor
from sightline.models.preprocessor import make_preprocessor


def open_predictor(
    bundle: Bundle, settings: InferenceSettings, *, min_score: float | None = None, cache: Path | None = None
) -> Predictor:
    """Load a model and put an engine under it.

    Args:
        min_score: No caller will ask for detections below this score, so models that can need not sort them out.
        cache: Where compiled forms are kept.
    """
    info = bundle.info
    source = bundle.source(size=None if settings.size == info.size else settings.size)
    preprocessing = info.preprocessing.model_copy(
        update={"square": not settings.rectangular, "reduced_decode": settings.reduced_decode}
    )
    engine = open_engine(
        source,
        name=settings.engine,
        device=settings.device,
        threads=settings.threads,
        streams=settings.streams,
        bfloat16=settings.precision == "bfloat16",
        cache=cache,
    )
    engine.model.raise_min_score(min_score)
    preprocessor = make_preprocessor(source.inference, preprocessing, max_pixels=settings.max_pixels)
    return Predictor(engine, preprocessor, info.classes, info.task, engine.name, bundle=bundle)
