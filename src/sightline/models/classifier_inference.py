"""From the logits of a classifier to the probability of every class."""

import numpy as np
from numpy.typing import NDArray

from sightline.models.inference import InferenceModel, Run, softmax, to_numpy
from sightline.models.letterbox import Letterbox
from sightline.structures import Detections


class ClassifierInference(InferenceModel):
    """Small images are made larger too: published weights know them so."""

    def __init__(self, size: int) -> None:
        self.letterbox = Letterbox(size, upscale=True)

    def detect(self, run: Run, images: NDArray[np.uint8]) -> list[Detections]:
        """Every class with its probability, the highest first, in a box around the image."""
        (logits,) = run("logits", images)
        scores = softmax(to_numpy(logits))
        labels = np.argsort(-scores, axis=1, kind="stable").astype(np.int32)
        height, width = images.shape[-2:]
        boxes = np.tile(np.array([0, 0, width, height], scores.dtype), (scores.shape[1], 1))
        return [Detections(boxes, own[order], order) for own, order in zip(scores, labels, strict=True)]
