"""What a YOLO head gives made into boxes: candidates are chosen and suppressed as in Ultralytics' validation."""

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from sightline.models.detector import Found

_STRIDES = (8, 16, 32)
_BEFORE_NMS = 3000  # Candidates an image; 128 photos of COCO had 600 in the median, 3,405 at most.


def decode_predictions(raw: Tensor, logits: Tensor, *, height: int, width: int) -> Tensor:
    """What a head says at every place as B x (4 + C) x P: centre, width and height in pixels, and scores.

    Args:
        raw: B x 4R x P: how far each side of the box is, as a distribution over R distances in units of the stride.
        logits: B x C x P.
        height: Of the images, in pixels.
    """
    batch, channels, places = raw.shape
    distances = torch.arange(channels // 4, device=raw.device, dtype=raw.dtype)
    # Not as a product of matrices: engines take fewer bits for those.
    sides = (raw.view(batch, 4, -1, places).softmax(2) * distances[:, None]).sum(2)
    points, strides = _grid(height, width, like=raw)
    first, last = points - sides[:, :2], points + sides[:, 2:]
    return torch.cat([(first + last) / 2 * strides, (last - first) * strides, logits.sigmoid()], 1)


def _grid(height: int, width: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Middles of all places, 2 x P in units of their stride, and those strides, P."""
    points, strides = [], []
    for stride in _STRIDES:
        rows, columns = height // stride, width // stride
        ys = torch.arange(rows, device=like.device, dtype=like.dtype) + 0.5
        xs = torch.arange(columns, device=like.device, dtype=like.dtype) + 0.5
        grid = torch.stack([xs[None, :].expand(rows, columns), ys[:, None].expand(rows, columns)])
        points.append(grid.flatten(1))
        strides.append(torch.full_like(points[-1][0], stride))
    return torch.cat(points, 1), torch.cat(strides)


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
