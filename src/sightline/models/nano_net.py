"""The layers of `nano`: a cheap stem, three residual stages, one top-down pass, one map of predictions.

Plain 3 x 3 convolutions and ReLU throughout: with channels-last tensors and AVX they run near the processor's peak,
while layers at stride 2 would spend their time on moving memory. So the stem goes to stride 4 in one convolution. One
residual block stays there, for what tells small objects apart is only a few pixels large; the rest is done below.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_PRIOR = 0.01  # Nearly everything is background: starting there keeps the first steps calm.
_TYPICAL_SIDE = 4.0  # In strides; boxes begin as large as a typical small object.


class ConvBlock(nn.Sequential):
    """Convolution, batch normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel - 1) // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    """Two 3 x 3 convolutions around which the input passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvBlock(channels, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)  # Blocks begin as the identity, which lets a high learning rate start well.

    def forward(self, features: Tensor) -> Tensor:
        """B x C x h x w to the same."""
        return F.relu(features + self.norm(self.second(self.first(features))))


class NanoNet(nn.Module):
    """Images to raw predictions.

    Args:
        num_classes: Classes to tell apart.
        width: Channels at stride 8; the others follow.
        blocks: Residual blocks at strides 8, 16 and 32.
    """

    def __init__(self, num_classes: int, *, width: int = 48, blocks: tuple[int, int, int] = (2, 2, 2)) -> None:
        super().__init__()
        c4, c8, c16, c32 = 2 * width // 3, width, 2 * width, 3 * width
        self.stem = nn.Sequential(ConvBlock(3, c4, kernel=6, stride=4), Residual(c4))
        self.stage8 = _stage(c4, c8, blocks[0])
        self.stage16 = _stage(c8, c16, blocks[1])
        self.stage32 = _stage(c16, c32, blocks[2])
        self.lateral16 = ConvBlock(c32, c16, kernel=1)
        self.fuse16 = ConvBlock(c16, c16)
        self.lateral8 = ConvBlock(c16, c8, kernel=1)
        self.fuse8 = ConvBlock(c8, c8)
        self.class_branch = ConvBlock(c8, c8)
        self.box_branch = ConvBlock(c8, c8)
        self.class_map = nn.Conv2d(c8, 1 + num_classes, 1)
        self.box_map = nn.Conv2d(c8, 4, 1)
        self._start_calm()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Predict at every eighth pixel.

        Args:
            images: B x 3 x H x W, normalised; H and W multiples of 32.

        Returns:
            Logits of objectness and classes, B x (1 + C) x H/8 x W/8, and raw boxes, B x 4 x H/8 x W/8.
        """
        at8 = self.stage8(self.stem(images))
        at16 = self.stage16(at8)
        at32 = self.stage32(at16)
        at16 = self.fuse16(at16 + _upsample(self.lateral16(at32)))
        at8 = self.fuse8(at8 + _upsample(self.lateral8(at16)))
        return self.class_map(self.class_branch(at8)), self.box_map(self.box_branch(at8))

    def _start_calm(self) -> None:
        nn.init.normal_(self.class_map.weight, std=0.01)
        nn.init.normal_(self.box_map.weight, std=0.01)
        assert self.class_map.bias is not None
        assert self.box_map.bias is not None
        with torch.no_grad():
            self.class_map.bias.zero_()
            self.class_map.bias[0] = -math.log((1 - _PRIOR) / _PRIOR)
            self.box_map.bias.copy_(torch.tensor([0.0, 0.0, math.log(_TYPICAL_SIDE), math.log(_TYPICAL_SIDE)]))


def _stage(inputs: int, outputs: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(ConvBlock(inputs, outputs, stride=2), *(Residual(outputs) for _ in range(blocks)))


def _upsample(features: Tensor) -> Tensor:
    return F.interpolate(features, scale_factor=2.0, mode="nearest")
