"""What a YOLO head gives made into boxes: candidates are chosen and suppressed as in Ultralytics' validation."""

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from sightline.models.detector import Found

_BEFORE_NMS = 3000  # Candidates an image; 128 photos of COCO had 600 in the median, 3,405 at most.


def choose_boxes(output: Tensor, *, score_threshold: float, nms_iou: float, max_detections: int) -> Found:
    """Detections of one image; a place may be of several classes.

    Args:
        output: (4 + C) x P: centre, width and height in pixels, and a score from 0 to 1 for each class.
    """
    output = output.float()
    # Nearly all places are background; all that follows is for the others.
    output = output[:, output[4:].amax(0) >= score_threshold]
    centres, sides, scores = output[:2].T, output[2:4].T, output[4:]
    labels, places = torch.where(scores >= score_threshold)
    values = scores[labels, places]
    if len(values) > _BEFORE_NMS:
        values, best = values.topk(_BEFORE_NMS)
        labels, places = labels[best], places[best]
    boxes = torch.cat([centres - sides / 2, centres + sides / 2], 1)[places]
    kept = batched_nms(boxes, values, labels, nms_iou)[:max_detections]
    return Found(boxes[kept], values[kept], labels[kept])
