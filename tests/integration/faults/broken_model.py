"""Breaks the model of a process, as a failed assertion on a GPU does: every later call fails, whatever the image."""

from typing import Any


def break_model() -> None:
    from sightline.models.predictor import Predictor

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    Predictor._run = fail  # type: ignore[method-assign]
