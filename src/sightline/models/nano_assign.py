"""Which predictions of `nano` answer for which object, decided image by image.

Candidates are the points near an object's centre. Those that already agree best with it, in class and in overlap, are
its positives (task-aligned assignment), so that one prediction learns to be good at both.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import box_iou

from sightline.models.detector import Target

_RADIUS = 2.0  # Strides from the centre within which a point may answer for an object.
_POSITIVES = 9  # Points that answer for one object.
_SCORE_POWER, _IOU_POWER = 0.5, 3.0
_NEARNESS = 1e-6  # Where nothing overlaps yet, the nearest points come first.


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the predictions of one image should say.

    Attributes:
        positive: K int64, the points that answer for an object.
        objects: K int64, the object of each.
        quality: K, how well each does relative to the best for its object, 0 to 1: the score it should give.
        counted: P bool; False inside regions to ignore, which are neither object nor background.
    """

    positive: Tensor
    objects: Tensor
    quality: Tensor
    counted: Tensor


@torch.no_grad()
def assign(points: Tensor, boxes: Tensor, scores: Tensor, target: Target, *, stride: int) -> Assignment:
    """Choose the positives of one image.

    Args:
        points: P x 2 pixels.
        boxes: P x 4 predicted, xyxy.
        scores: P x C predicted, 0 to 1.
        target: What is there; regions to ignore included.
        stride: Pixels from point to point.
    """
    counted = ~_inside_any(points, target.boxes[target.ignore].to(points))
    wanted = ~target.ignore
    objects, labels = target.boxes[wanted].to(boxes), target.labels[wanted]
    if not len(objects):
        none = labels.new_zeros(0)
        return Assignment(none, none, boxes.new_zeros(0), counted)
    overlap = box_iou(objects, boxes)
    nearness = _nearness(points, objects, stride) * counted
    alignment = scores[:, labels].T.pow(_SCORE_POWER) * overlap.pow(_IOU_POWER) * (nearness > 0) + _NEARNESS * nearness
    chosen = _best_for_each(alignment)
    positive = chosen.any(0).nonzero().flatten()
    owner = (alignment * chosen).argmax(0)[positive]
    quality = _quality(alignment, overlap, owner, positive)
    return Assignment(positive, wanted.nonzero().flatten()[owner], quality, counted)


def _nearness(points: Tensor, objects: Tensor, stride: int) -> Tensor:
    """N x P: 1 at an object's centre, 0 where a point is too far away to answer for it."""
    centres = (objects[:, :2] + objects[:, 2:]) / 2
    distance = (points[None] - centres[:, None]).abs().amax(-1) / stride
    return (1 - distance / _RADIUS).clamp(min=0)


def _best_for_each(alignment: Tensor) -> Tensor:
    """N x P bool: the points that agree best with each object."""
    values, places = alignment.topk(min(_POSITIVES, alignment.shape[1]), dim=1)
    return torch.zeros_like(alignment, dtype=torch.bool).scatter_(1, places, values > 0)


def _quality(alignment: Tensor, overlap: Tensor, owner: Tensor, positive: Tensor) -> Tensor:
    """Alignment brought to the scale of the overlap: the best point of an object is to score its best overlap."""
    own_alignment, own_overlap = alignment[owner, positive], overlap[owner, positive]
    best_alignment, best_overlap = alignment.new_zeros(len(alignment)), overlap.new_zeros(len(overlap))
    best_alignment.scatter_reduce_(0, owner, own_alignment, "amax")
    best_overlap.scatter_reduce_(0, owner, own_overlap, "amax")
    return own_alignment / best_alignment[owner] * best_overlap[owner]


def _inside_any(points: Tensor, regions: Tensor) -> Tensor:
    """P bool: whether a point lies in one of M regions."""
    after = (points[:, None] >= regions[None, :, :2]).all(-1)
    before = (points[:, None] < regions[None, :, 2:]).all(-1)
    return (after & before).any(1)
