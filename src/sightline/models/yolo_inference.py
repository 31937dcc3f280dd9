"""From the predictions of a YOLO head to detections, as in Ultralytics' validation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import ConfigError
from sightline.models.inference import InferenceModel, Run, check_sides, to_numpy
from sightline.models.letterbox import Letterbox
from sightline.models.suppression import batched_nms
from sightline.models.yolo_graph import YoloInput
from sightline.structures import Detections

GRAPH = "predictions"
_BEFORE_NMS = 3000
"""Candidates per image; 128 photos of COCO had 600 in the median, 3,405 at most."""


class YoloInference(InferenceModel):
    """The graph gives B x (4 + C) x P: center, width and height in pixels, and a score from 0 to 1 for each class.

    Args:
        size: Longest side of the images, in pixels.
        stride: Both sides of an image are multiples of this.
        min_score: Detections below it are not returned. With a higher one, what follows the graph takes a third of the
            time.
        nms_iou: Of two boxes of a class with a larger IoU, the one with the higher score remains.
        max_detections: Maximum number per image.
        fixed: What the graph takes, for a file that does not take every batch and size.
    """

    def __init__(
        self,
        size: int,
        *,
        stride: int = 32,
        min_score: float = 0.001,
        nms_iou: float = 0.7,
        max_detections: int = 300,
        fixed: YoloInput | None = None,
    ) -> None:
        if fixed and fixed.side not in (None, size):
            raise ConfigError(
                f"size is {size}, and the ONNX file of this model takes {fixed.side} only: leave the size out, or "
                "import a file that was exported with dynamic axes"
            )
        # Small images too, and into the middle of a square: YOLOv8n scored 0.019 less mAP with images in its corner.
        self.letterbox = Letterbox(size, multiple=stride, upscale=True, centred=True)
        self.rectangular = fixed is None or fixed.side is None
        self.min_score: float = min_score
        self.nms_iou = nms_iou
        self.max_detections = max_detections
        self._fixed = fixed

    def detect(self, run: Run, images: NDArray[np.uint8]) -> list[Detections]:
        """See `InferenceModel.detect`."""
        check_sides(images, self.letterbox.multiple)
        side = self._fixed.side if self._fixed else None
        if side is not None and images.shape[-2:] != (side, side):
            raise ValueError(f"images are {images.shape}; expected {side} x {side}")
        batch = (self._fixed.batch if self._fixed else None) or len(images)
        detections: list[Detections] = []
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            if missing := batch - len(part):  # The file takes batches of one size only.
                part = np.concatenate([part, np.zeros((missing, *part.shape[1:]), np.uint8)])
            (predictions,) = run(GRAPH, part)
            detections += [self.select(output) for output in to_numpy(predictions)]
        return detections[: len(images)]

    def select(self, predictions: NDArray[Any]) -> Detections:
        """Detections of one image; a place may be of several classes.

        Args:
            predictions: (4 + C) x P.
        """
        # Nearly all places are background; all that follows is for the others.
        predictions = predictions[:, predictions[4:].max(0, initial=0) >= self.min_score]
        centres, sides, scores = predictions[:2].T, predictions[2:4].T, predictions[4:]
        labels, places = np.nonzero(scores >= self.min_score)
        values = scores[labels, places]
        if len(values) > _BEFORE_NMS:
            best = np.argpartition(-values, _BEFORE_NMS)[:_BEFORE_NMS]
            labels, places, values = labels[best], places[best], values[best]
        with np.errstate(invalid="ignore"):  # Half precision overflows to infinity.
            boxes = np.concatenate([centres - sides / 2, centres + sides / 2], 1)[places]
        kept = batched_nms(boxes, values, labels, iou=self.nms_iou, limit=self.max_detections)
        return Detections(boxes[kept], values[kept], labels[kept].astype(np.int32))
