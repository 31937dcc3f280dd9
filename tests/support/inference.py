"""Settings of inference for small models."""

from sightline.config import DetectConfig
from sightline.engines.settings import InferenceSettings, resolve_inference
from sightline.models.bundle import Bundle

TORCH = InferenceSettings(
    engine="torch", threshold=0.1, size=64, rectangular=True, reduced_decode=True, tile=None, overlap=None
)
"""For models of 64 pixels."""


def settings_of(bundle: Bundle, **options: object) -> InferenceSettings:
    """The settings that a model is run with on one thread of the CPU, by the torch engine unless said otherwise."""
    given = DetectConfig.model_validate({"engine": "torch", "threads": 1, **options})
    return resolve_inference(bundle, given, device="cpu", max_pixels=TORCH.max_pixels)
