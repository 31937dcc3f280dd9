"""torchvision's one-stage detectors as one graph and its own post-processing: SSDlite, RetinaNet, FCOS."""

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.ssd import SSD

from sightline.models.graph import IMAGES, Graph
from sightline.models.inference import Run
from sightline.models.kept_anchors import KeptAnchors


def one_stage_graphs(model: nn.Module) -> dict[str, Graph]:
    """One: images to everything that the heads say."""
    generator: Any = model.anchor_generator
    levels = len(generator.num_anchors_per_location())
    grids = [f"grid{level}" for level in range(levels)]
    return {"maps": Graph(_Maps(model), (IMAGES,), (*grids, *_heads(model)))}


def detect_in_one_stage(model: Any, make_anchors: KeptAnchors, run: Run, images: Tensor) -> list[dict[str, Tensor]]:
    """What torchvision's forward pass gives, with the network run by another."""
    outputs, names = run("maps", images), _heads(model)
    grids, heads = outputs[: -len(names)], dict(zip(names, outputs[-len(names) :], strict=True))
    height, width = images.shape[-2:]
    sizes = [(height, width)] * len(images)
    anchors = make_anchors(images, list(grids))
    if isinstance(model, SSD):
        return model.postprocess_detections(heads, anchors, sizes)  # type: ignore[no-any-return]
    places = [grid.shape[-2] * grid.shape[-1] for grid in grids]
    each = heads["cls_logits"].shape[1] // sum(places)
    counts = [each * count for count in places]
    found: list[dict[str, Tensor]] = model.postprocess_detections(
        {name: list(torch.split(head, counts, dim=1)) for name, head in heads.items()},
        [list(torch.split(own, counts)) for own in anchors],
        sizes,
    )
    return found


def _heads(model: nn.Module) -> tuple[str, ...]:
    match model:
        case SSD():
            return ("bbox_regression", "cls_logits")
        case RetinaNet():
            return ("cls_logits", "bbox_regression")
        case FCOS():
            return ("cls_logits", "bbox_regression", "bbox_ctrness")
        case other:
            raise TypeError(f"{type(other).__name__} is not a detector of one stage that is known here")


class _Maps(nn.Module):
    """8-bit images to what the heads say of all levels, and one channel of each level for the sizes of its grid."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.normalise, self.backbone, self.head = model.transform.normalise, model.backbone, model.head
        self.names = _heads(model)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """B x 3 x H x W to 1 x 1 x h x w a level, then B x all places x numbers a head."""
        features = list(self.backbone(self.normalise(images)).values())
        heads = self.head(features)
        return (*(level[:1, :1] for level in features), *(heads[name] for name in self.names))
