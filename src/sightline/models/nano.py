"""`nano`: our own small one-stage detector, made to learn from scratch on a CPU in minutes.

Anchor-free, one map of predictions at stride 8 into which coarser features were added, any input size. Put together
from published ideas: residual networks (He 2016), feature pyramids (Lin 2017), decoupled heads (Ge 2021), task-aligned
assignment (Feng 2021), scores that estimate the overlap (Zhang 2021), generalised IoU (Rezatofighi 2019). Whether there
is an object and which one it is are asked apart: a single score for both has to learn where objects are before it can
begin to tell them apart, and took many times as long.
"""

import torch
from torch import Tensor

from sightline.models.detector import Detector, LossTerm, Target
from sightline.models.graph import IMAGES, Graph
from sightline.models.inference import check_sides
from sightline.models.nano_boxes import decode_boxes, flatten_map, grid_points
from sightline.models.nano_inference import COARSEST, STRIDE, NanoInference
from sightline.models.nano_loss import nano_loss
from sightline.models.nano_net import NanoNet


class NanoDetector(Detector):
    """See the module docstring.

    Args:
        num_classes: Classes to tell apart.
        size: Longest side of the images it is given, in pixels.
        width: Channels at stride 8; time and parameters grow with its square.

    Example:
        >>> model = NanoDetector(6).eval()
        >>> [detections.boxes.shape[1] for detections in model.detect(np.zeros((1, 64, 96, 3), np.uint8))]
        [4]
    """

    heads = ("net.class_map.",)

    def __init__(self, num_classes: int, *, size: int = 640, width: int = 48) -> None:
        super().__init__()
        self.size = size
        self.net = NanoNet(num_classes, width=width).to(memory_format=torch.channels_last)

    @property
    def inference(self) -> NanoInference:
        """See `Detector.inference`."""
        return NanoInference(self.size)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Raw maps, without anything that depends on the data: the part to trace or export.

        Args:
            images: B x 3 x H x W uint8, H and W multiples of 32.

        Returns:
            Logits of objectness and classes, B x (1 + C) x H/8 x W/8, and raw boxes, B x 4 x H/8 x W/8.
        """
        dtype = self.net.class_map.weight.dtype
        pixels = images.to(dtype=dtype, memory_format=torch.channels_last)
        maps: tuple[Tensor, Tensor] = self.net(pixels / 127.5 - 1)
        return maps

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """See `Detector.loss`; nothing here is random."""
        check_sides(images, COARSEST)
        logits, boxes, points = self._decode(*self(images))
        return nano_loss(logits, boxes, points, targets, stride=STRIDE)

    def graphs(self) -> dict[str, Graph]:
        """One: the raw maps."""
        return {"maps": Graph(self, (IMAGES,), ("logits", "boxes"))}

    def _decode(self, logits: Tensor, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits B x P x (1 + C), boxes B x P x 4 and points P x 2, in single precision at least."""
        # Half precision has no room for pixel coordinates, nor for the small scores of the background.
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logits, raw = logits.to(dtype), raw.to(dtype)
        points = grid_points(*raw.shape[-2:], stride=STRIDE, like=raw)
        return flatten_map(logits), decode_boxes(flatten_map(raw), points, stride=STRIDE), points
