"""Pictures that a run leaves, of what its best model finds in validation images, and the bundle that shows them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sightline.data.dataset import Dataset
from sightline.data.decode import MAX_PIXELS, decode
from sightline.errors import ImageError
from sightline.models.bundle import CARD, Bundle, save_bundle
from sightline.models.detector import Detector
from sightline.models.info import ModelInfo
from sightline.models.predictor import DEFAULT_THRESHOLD, predictor_of
from sightline.models.preprocessor import PreparedImage
from sightline.report.card import model_card
from sightline.report.predictions import draw_prediction

COUNT = 6


def draw_predictions(
    model: Detector, dataset: Dataset, to: Path, *, score_threshold: float | None, max_pixels: int = MAX_PIXELS
) -> None:
    """Write a few images with what a model finds in them."""
    threshold, predictor = (
        score_threshold or DEFAULT_THRESHOLD,
        predictor_of(model, dataset.classes, max_pixels=max_pixels),
    )
    to.mkdir(exist_ok=True)
    for number, position in enumerate(_choose(dataset)):
        try:
            pixels = decode(dataset[position].image, max_pixels=max_pixels)
        except ImageError:
            continue  # It was counted as rejected where it was met; here another picture would do as well.
        canvas = predictor.preprocessor.canvas(dataset[position].image)
        (found,) = predictor.detect([PreparedImage(canvas, *dataset.size(position))], threshold)
        sheet = draw_prediction(pixels, dataset.annotation(position), found, classes=dataset.classes)
        sheet.save(to / f"{number:02d}.jpg", quality=88)


def save_with_card(directory: Path, model: Detector, info: ModelInfo, drawn: Sequence[Path] = ()) -> Bundle:
    """Write a model's bundle, with a card that shows some pictures."""
    pictures = {f"picture-{number:02d}.jpg": file.read_bytes() for number, file in enumerate(drawn)}
    card = model_card(info, list(pictures)).encode()
    return save_bundle(directory, model.state_dict(), info, {CARD: card, **pictures})


def _choose(dataset: Dataset) -> list[int]:
    """Spread evenly over the split; images with something in them first."""
    spread = np.unique(np.linspace(0, len(dataset) - 1, 4 * COUNT).astype(int)).tolist() if len(dataset) else []
    filled = [
        place for place in spread if len(dataset.annotation(place)) or dataset.annotation(place).label is not None
    ]
    candidates = filled or spread
    picks = np.unique(np.linspace(0, len(candidates) - 1, COUNT).astype(int)).tolist() if candidates else []
    return [candidates[pick] for pick in picks]
