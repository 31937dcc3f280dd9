"""Where the predictions of `nano` stand, and the boxes and scores that their raw numbers mean.

A prediction names its box by the offset of the centre and the logarithm of the sides, both in strides. Unlike the
distances to four edges, this can also name a box that the prediction's own point lies outside of, as it does for
objects smaller than a stride.
"""

import torch
from torch import Tensor

from sightline.models.nano_inference import LARGEST


def grid_points(height: int, width: int, *, stride: int, like: Tensor) -> Tensor:
    """The centres of the cells of a map, row by row.

    Args:
        height: Rows of the map.
        width: Columns of the map.
        stride: Pixels a cell.
        like: Gives device and dtype.

    Returns:
        P x 2, x and y in pixels of the image.
    """
    ys = (torch.arange(height, device=like.device, dtype=like.dtype) + 0.5) * stride
    xs = (torch.arange(width, device=like.device, dtype=like.dtype) + 0.5) * stride
    return torch.stack([xs.repeat(height), ys.repeat_interleave(width)], dim=1)


def decode_boxes(raw: Tensor, points: Tensor, *, stride: int) -> Tensor:
    """Raw predictions to boxes.

    Args:
        raw: B x P x 4.
        points: P x 2 pixels.
        stride: Pixels a cell.

    Returns:
        B x P x 4, xyxy in pixels, not cut at the image's edges.
    """
    centres = points + stride * raw[..., :2]
    halves = (stride / 2) * raw[..., 2:].clamp(max=LARGEST).exp()
    return torch.cat([centres - halves, centres + halves], dim=-1)


def decode_scores(logits: Tensor) -> Tensor:
    """Raw predictions to scores: how sure it is that an object is there, shared out among the classes.

    Args:
        logits: … x (1 + C), objectness first.

    Returns:
        … x C, 0 to 1.
    """
    return logits[..., :1].sigmoid() * logits[..., 1:].softmax(-1)


def flatten_map(raw: Tensor) -> Tensor:
    """A map of predictions as a list of them: B x C x h x w to B x hw x C."""
    return raw.flatten(2).transpose(1, 2)
