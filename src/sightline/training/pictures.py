"""Pictures that a run leaves: what its best model finds in some validation images, beside the truth."""

from pathlib import Path

import numpy as np
import torch

from sightline.data.dataset import Dataset
from sightline.data.decode import decode
from sightline.errors import ImageError
from sightline.models.classifier import Classifier
from sightline.models.detector import Detector
from sightline.report.predictions import Prediction, draw_prediction
from sightline.training.evaluate import in_original
from sightline.training.model_files import load_model

COUNT = 6
_THRESHOLD = 0.3
"""Where validation has chosen none."""


def draw_predictions(model_directory: Path, dataset: Dataset, to: Path) -> None:
    """Write a few images with what the model in a directory finds in them."""
    model, info = load_model(model_directory)
    threshold = info.score_threshold or _THRESHOLD
    to.mkdir(exist_ok=True)
    for number, position in enumerate(_choose(dataset)):
        try:
            pixels = decode(dataset[position].image)
        except ImageError:
            continue  # It was counted as rejected where it was met; here another picture would do as well.
        found = _predict(model, dataset, position, pixels, threshold)
        sheet = draw_prediction(pixels, dataset.annotation(position), found, classes=dataset.classes)
        sheet.save(to / f"{number:02d}.jpg", quality=88)


def _choose(dataset: Dataset) -> list[int]:
    """Spread evenly over the split; images with something in them first."""
    spread = np.unique(np.linspace(0, len(dataset) - 1, 4 * COUNT).astype(int)).tolist() if len(dataset) else []
    filled = [
        place for place in spread if len(dataset.annotation(place)) or dataset.annotation(place).label is not None
    ]
    candidates = filled or spread
    picks = np.unique(np.linspace(0, len(candidates) - 1, COUNT).astype(int)).tolist() if candidates else []
    return [candidates[pick] for pick in picks]


def _predict(model: Detector, dataset: Dataset, position: int, pixels: np.ndarray, threshold: float) -> Prediction:
    fitted, _ = model.preprocess()(pixels, dataset.annotation(position))
    with torch.inference_mode():
        found = model.detect(torch.from_numpy(np.stack([fitted])).permute(0, 3, 1, 2))[0]
    if isinstance(model, Classifier):
        best = found.scores.argmax()
        return Prediction(
            np.zeros((1, 4), np.float32), found.scores[best][None].numpy(), found.labels[best][None].int().numpy()
        )
    detections = in_original(found, model, dataset, position)
    kept = detections.scores >= threshold
    boxes, scores, labels = detections.boxes[kept], detections.scores[kept], detections.labels[kept]
    return Prediction(boxes.astype(np.float32), scores.astype(np.float32), labels.astype(np.int32))
