"""Pixels as torchvision's networks want them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """Scales uint8 pixels to 0 … 1, then by mean and deviation; not part of the weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """B x 3 x H x W uint8 to float."""
        return (images.to(self.mean.dtype) - 255 * self.mean) / (255 * self.std)
