"""The loss of `nano`: whether there is an object at each point, of which class, and how well its box fits.

All sums are over single images, and so are all decisions: the loss of a batch is that of its parts added up.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import generalized_box_iou_loss

from sightline.models.detector import LossTerm, Target
from sightline.models.nano_assign import Assignment, assign
from sightline.models.nano_boxes import decode_scores

_BOX_WEIGHT = 1.0


def nano_loss(logits: Tensor, boxes: Tensor, points: Tensor, targets: list[Target], *, stride: int) -> list[LossTerm]:
    """The terms of the loss.

    Args:
        logits: B x P x (1 + C), objectness first.
        boxes: B x P x 4 predicted, xyxy in pixels.
        points: P x 2 pixels.
        targets: What is in each of the B images.
        stride: Pixels from point to point.
    """
    scores = decode_scores(logits.detach())
    found = [
        assign(points, own_boxes, own_scores, target, stride=stride)
        for own_boxes, own_scores, target in zip(boxes.detach(), scores, targets, strict=True)
    ]
    return [
        _object_term(logits[..., 0], found),
        _class_term(logits[..., 1:], found, targets),
        _box_term(boxes, found, targets),
    ]


def _object_term(logits: Tensor, found: list[Assignment]) -> LossTerm:
    """Cross-entropy: positives are to score their quality, everything else nothing."""
    quality = torch.zeros_like(logits)
    counted = torch.ones_like(logits)
    for index, one in enumerate(found):
        quality[index, one.positive] = one.quality.to(quality)
        counted[index] = one.counted.to(counted)
    losses = F.binary_cross_entropy_with_logits(logits, quality, weight=counted, reduction="sum")
    # An image without objects counts as one object: its background must not be divided by nothing.
    objects = sum(max(1, len(one.positive)) for one in found)
    return LossTerm("object", losses, logits.new_tensor(float(objects)))


def _class_term(logits: Tensor, found: list[Assignment], targets: list[Target]) -> LossTerm:
    """Cross-entropy over the classes, of positives only."""
    total = logits.sum() * 0  # Keeps the gradient's path where no image has objects.
    for own_logits, one, target in zip(logits, found, targets, strict=True):
        total = total + F.cross_entropy(own_logits[one.positive], target.labels[one.objects], reduction="sum")
    return LossTerm("class", total, logits.new_tensor(float(_num_positives(found))))


def _box_term(boxes: Tensor, found: list[Assignment], targets: list[Target]) -> LossTerm:
    """Generalised IoU of every positive, also those that do not overlap their object yet."""
    total = boxes.sum() * 0  # Keeps the gradient's path where no image has objects.
    for own_boxes, one, target in zip(boxes, found, targets, strict=True):
        wanted = target.boxes[one.objects].to(boxes)
        total = total + generalized_box_iou_loss(own_boxes[one.positive], wanted, reduction="sum")
    return LossTerm("box", total, boxes.new_tensor(float(_num_positives(found))), weight=_BOX_WEIGHT)


def _num_positives(found: list[Assignment]) -> int:
    return sum(len(one.positive) for one in found)
