"""Models with fresh weights that find something, so that there is something to compare.

Fresh networks give next to nothing: BatchNorm knows no statistics yet, and heads begin at background.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.models.detector import Detector, Target
from sightline.models.factory import CLASSIFIERS, make_model


def make_lively(name: str, *, num_classes: int = 3, size: int = 128) -> Detector:
    """A model whose scores spread over many values."""
    torch.manual_seed(0)
    model = make_model(name, num_classes=num_classes, size=size).train()
    if name.startswith("fasterrcnn"):
        model.model.rpn._post_nms_top_n = {"training": 100, "testing": 100}  # Enough to compare; the rest takes time.
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        nn.init.uniform_(norm.weight, 0.5, 1.5)  # Blocks of some families begin as the identity.
    target = Target(torch.tensor([[10.0, 10, 60, 50]]), torch.tensor([1]), torch.tensor([False]), label=1)
    with torch.no_grad():
        model.loss(make_images(2, size, size), [target, target], [1, 2])
    for head in [module for name, module in model.named_modules() if f"{name}.".startswith(model.heads)]:
        if isinstance(head, nn.Conv2d | nn.Linear):
            nn.init.normal_(head.weight, std=2.0 / (head.weight[0].numel() ** 0.5))
            if head.bias is not None and name not in CLASSIFIERS:
                nn.init.constant_(head.bias, 0.0)
    return model.eval()


def make_canvases(count: int, height: int, width: int) -> NDArray[np.uint8]:
    """The same images as B x H x W x 3, as `detect` takes them."""
    return np.ascontiguousarray(make_images(count, height, width).permute(0, 2, 3, 1).numpy())


def make_images(count: int, height: int, width: int) -> Tensor:
    """Noise in blocks, which survives coarse strides."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (count, 3, height // 8, width // 8), dtype=torch.uint8, generator=generator)
    fine = torch.randint(0, 60, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    return (coarse.repeat_interleave(8, 2).repeat_interleave(8, 3) // 2 + fine).contiguous()
