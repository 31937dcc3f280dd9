"""The loss of `nano`: how sure it is of each class at each point, and how well its boxes fit.

All sums are over single images, and so are all decisions: the loss of a batch is that of its parts added up.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import generalized_box_iou_loss

from sightline.models.detector import LossTerm, Target
from sightline.models.nano_assign import Assignment, assign

_BOX_WEIGHT = 1.0


def nano_loss(logits: Tensor, boxes: Tensor, points: Tensor, targets: list[Target], *, stride: int) -> list[LossTerm]:
    """The terms of the loss.

    Args:
        logits: B x P x C.
        boxes: B x P x 4 predicted, xyxy in pixels.
        points: P x 2 pixels.
        targets: What is in each of the B images.
        stride: Pixels from point to point.
    """
    scores = logits.detach().sigmoid()
    found = [
        assign(points, own_boxes, own_scores, target, stride=stride)
        for own_boxes, own_scores, target in zip(boxes.detach(), scores, targets, strict=True)
    ]
    return [_class_term(logits, found, targets), _box_term(boxes, found, targets)]


def _class_term(logits: Tensor, found: list[Assignment], targets: list[Target]) -> LossTerm:
    """Cross-entropy: positives are to score their quality, everything else nothing."""
    quality = torch.zeros_like(logits)
    counted = torch.ones_like(logits[..., 0], dtype=torch.bool)
    for index, (one, target) in enumerate(zip(found, targets, strict=True)):
        quality[index, one.positive, target.labels[one.objects]] = one.quality
        counted[index] = one.counted
    weight = counted[..., None].to(logits)
    losses = F.binary_cross_entropy_with_logits(logits, quality, weight=weight, reduction="sum")
    # An image without objects counts as one object: its background must not be divided by nothing.
    objects = sum(max(1, len(one.positive)) for one in found)
    return LossTerm("class", losses, logits.new_tensor(float(objects)))


def _box_term(boxes: Tensor, found: list[Assignment], targets: list[Target]) -> LossTerm:
    """Generalised IoU of every positive, also those that do not overlap their object yet."""
    total = boxes.sum() * 0  # Keeps the gradient's path where no image has objects.
    for own_boxes, one, target in zip(boxes, found, targets, strict=True):
        wanted = target.boxes[one.objects].to(boxes)
        total = total + generalized_box_iou_loss(own_boxes[one.positive], wanted, reduction="sum")
    positives = sum(len(one.positive) for one in found)
    return LossTerm("box", total, boxes.new_tensor(float(positives)), weight=_BOX_WEIGHT)
