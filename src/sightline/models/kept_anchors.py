"""Anchors made once for each size of image, not once for each image."""

from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.image_list import ImageList

_KEPT = 8  # Sizes; a model sees one, or a few with rectangular images.


class KeptAnchors:
    """What torchvision's generator of anchors gives, remembered by the sizes that it depends on."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._kept: dict[Any, Tensor] = {}

    def __call__(self, images: Tensor, maps: list[Tensor]) -> list[Tensor]:
        """The anchors of each image.

        Args:
            images: B x 3 x H x W.
            maps: A level each, with the level's height and width last.
        """
        height, width = images.shape[-2:]
        grids = tuple(level.shape[-2:] for level in maps)
        # What was made in inference mode cannot take part in a gradient later.
        key = (height, width, grids, maps[0].dtype, maps[0].device, torch.is_inference_mode_enabled())
        anchors = self._kept.get(key)
        if anchors is None:
            (anchors,) = self._generator(ImageList(images[:1], [(height, width)]), maps)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = anchors
        return [anchors] * len(images)
