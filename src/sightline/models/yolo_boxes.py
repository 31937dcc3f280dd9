"""The raw output of a YOLO head decoded to boxes and scores, inside the graph."""

import torch
from torch import Tensor

_STRIDES = (8, 16, 32)


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
