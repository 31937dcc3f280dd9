"""From the raw maps of `nano` to detections."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.models.inference import InferenceModel, Run, check_sides, sigmoid, softmax, to_numpy
from sightline.models.letterbox import Letterbox
from sightline.models.suppression import batched_nms
from sightline.structures import Detections

STRIDE = 8
"""Pixels from one prediction to the next."""
COARSEST = 32
"""Both sides of an image must be multiples of this."""
LARGEST = 7.0
"""exp(7) strides are 8,772 pixels; more is only ever an overflow on its way."""
_BEFORE_NMS = 1000
"""Candidates per image; suppression is quadratic in them."""


class NanoInference(InferenceModel):
    """See the module docstring.

    Args:
        size: Longest side of the images, in pixels.
        min_score: Detections below it are not returned.
        nms_iou: Of two boxes of a class with a larger IoU, the one with the higher score remains.
        max_detections: Maximum number per image.
    """

    rectangular = True
    bfloat16 = frozenset({"maps"})

    def __init__(
        self, size: int = 640, *, min_score: float = 0.01, nms_iou: float = 0.5, max_detections: int = 300
    ) -> None:
        self.letterbox = Letterbox(size, multiple=COARSEST)
        self.min_score: float = min_score
        self.nms_iou = nms_iou
        self.max_detections = max_detections

    def detect(self, run: Run, images: NDArray[np.uint8]) -> list[Detections]:
        """See `InferenceModel.detect`."""
        check_sides(images, COARSEST)
        logits, raw = (_flatten(to_numpy(output)) for output in run("maps", images))
        height, width = images.shape[-2:]
        return [self._select(*image, width, height) for image in zip(logits, raw, strict=True)]

    def _select(self, logits: NDArray[Any], raw: NDArray[Any], width: int, height: int) -> Detections:
        """Detections of one image from logits P x (1 + C) and raw boxes P x 4."""
        # No class scores higher than its place; nearly all places are background.
        objectness = sigmoid(logits[:, 0])
        places = np.flatnonzero(objectness >= self.min_score)
        class_scores = objectness[places, None] * softmax(logits[places, 1:])
        flat = class_scores.reshape(-1)
        candidates = np.flatnonzero(flat >= self.min_score)
        if len(candidates) > _BEFORE_NMS:
            candidates = candidates[np.argpartition(-flat[candidates], _BEFORE_NMS)[:_BEFORE_NMS]]
        scores, (points, labels) = flat[candidates], np.divmod(candidates, class_scores.shape[1])
        boxes = _decode_boxes(raw[places[points]], places[points], width // STRIDE)
        boxes = np.clip(boxes, 0, np.array([width, height] * 2, boxes.dtype))
        kept = batched_nms(boxes, scores, labels, iou=self.nms_iou, limit=self.max_detections)
        return Detections(boxes[kept], scores[kept], labels[kept].astype(np.int32))


def _flatten(maps: NDArray[Any]) -> NDArray[Any]:
    """B x C x h x w to B x hw x C."""
    return maps.reshape(*maps.shape[:2], -1).transpose(0, 2, 1)


def _decode_boxes(raw: NDArray[Any], places: NDArray[np.intp], columns: int) -> NDArray[Any]:
    """Raw predictions N x 4 at N places of the map to xyxy in pixels; see `nano_boxes.decode_boxes`."""
    ys, xs = np.divmod(places, columns)
    centres = (np.stack([xs, ys], 1).astype(raw.dtype) + raw.dtype.type(0.5) + raw[:, :2]) * STRIDE
    halves = np.exp(np.minimum(raw[:, 2:], LARGEST)) * (STRIDE / 2)
    return np.concatenate([centres - halves, centres + halves], -1)
