"""Non-maximum suppression in NumPy, with the results of torchvision's `batched_nms`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def batched_nms(
    boxes: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any], *, iou: float, limit: int
) -> NDArray[np.int64]:
    """Indices of the boxes that remain, the highest score first.

    A box is suppressed by one of the same class with a higher score (of equal scores, by an earlier one) if their IoU
    exceeds the threshold.

    Args:
        boxes: N x 4, xyxy.
        iou: The threshold.
        limit: Maximum number of boxes to keep.

    Example:
        >>> boxes = np.array([[0, 0, 9, 10], [0, 0, 10, 10], [0, 0, 10, 10]], np.float32)
        >>> batched_nms(boxes, np.array([0.8, 0.9, 0.7]), np.array([0, 0, 1]), iou=0.5, limit=10).tolist()
        [1, 2]
    """
    order = np.argsort(-scores, kind="stable")
    left, top, right, bottom = np.ascontiguousarray(boxes[order].T)
    areas, labels = (right - left) * (bottom - top), labels[order]
    alive = np.ones(len(order), np.bool_)
    kept: list[int] = []
    index = 0
    while index < len(order) and len(kept) < limit:
        kept.append(index)
        rest = slice(index + 1, None)
        width = np.minimum(right[rest], right[index]) - np.maximum(left[rest], left[index])
        height = np.minimum(bottom[rest], bottom[index]) - np.maximum(top[rest], top[index])
        common = width.clip(0) * height.clip(0)
        # Multiplied out, so that boxes without area do not divide by zero.
        overlaps = common > iou * (areas[rest] + areas[index] - common)
        alive[rest] &= ~(overlaps & (labels[rest] == labels[index]))
        following = alive[rest].argmax() if len(order) > index + 1 else 0
        if len(order) == index + 1 or not alive[index + 1 + following]:
            break
        index += 1 + int(following)
    return order[kept]
