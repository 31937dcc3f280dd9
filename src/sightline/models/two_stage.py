"""torchvision's Faster R-CNN as two graphs; its own selection of proposals, pooling and post-processing lie between."""

from typing import Any

from torch import Tensor, nn
from torchvision.models.detection.rpn import concat_box_prediction_layers

from sightline.models.graph import IMAGES, Graph, Input
from sightline.models.inference import Run
from sightline.models.kept_anchors import KeptAnchors

_PROPOSALS = 8  # In the example for exporters; any number but 0 and 1, which they take for constants.


def two_stage_graphs(model: Any) -> dict[str, Graph]:
    """Two: "features" gives proposals and what they are pooled from, "box_head" judges what was pooled."""
    features, pool = _Features(model), model.roi_heads.box_roi_pool
    levels = [str(level) for level in range(len(model.rpn.anchor_generator.sizes))]
    maps = [f"map{name}" for name in features.pooled]
    outputs = (*maps, *(f"objectness{level}" for level in levels), *(f"deltas{level}" for level in levels))
    pooled = Input("pooled", (_PROPOSALS, *pool.output_size, model.backbone.out_channels), {0: "boxes"})
    return {
        "features": Graph(features, (IMAGES,), outputs, exact=_exact(model)),
        "box_head": Graph(_BoxHead(model), (pooled,), ("logits", "deltas")),
    }


def detect_in_two_stages(model: Any, make_anchors: KeptAnchors, run: Run, images: Tensor) -> list[dict[str, Tensor]]:
    """What torchvision's forward pass gives, with the networks run by another."""
    height, width = images.shape[-2:]
    sizes = [(height, width)] * len(images)
    outputs, levels = run("features", images), len(model.rpn.anchor_generator.sizes)
    maps, objectness, deltas = outputs[: -2 * levels], outputs[-2 * levels : -levels], outputs[-levels:]
    proposals = _proposals(model.rpn, make_anchors(images, list(objectness)), sizes, objectness, deltas)
    heads = model.roi_heads
    pooled = heads.box_roi_pool(dict(zip(_names(model), maps, strict=True)), proposals, sizes).permute(0, 2, 3, 1)
    if len(pooled) == 0:  # Compiled graphs may not take nothing; one row of zeros gives the shapes.
        logits, moves = (output[:0] for output in run("box_head", pooled.new_zeros(1, *pooled.shape[1:])))
    else:
        logits, moves = run("box_head", pooled)
    columns = heads.postprocess_detections(logits, moves, proposals, sizes)
    return [dict(zip(("boxes", "scores", "labels"), found, strict=True)) for found in zip(*columns, strict=True)]


def _proposals(
    rpn: Any,
    anchors: list[Tensor],
    sizes: list[tuple[int, int]],
    objectness: tuple[Tensor, ...],
    deltas: tuple[Tensor, ...],
) -> list[Tensor]:
    """The boxes of each image that are worth a second look, as torchvision's RPN chooses them."""
    counts = [level[0].numel() for level in objectness]
    scores, moves = concat_box_prediction_layers(list(objectness), list(deltas))
    boxes = rpn.box_coder.decode(moves, anchors).view(len(anchors), -1, 4)
    chosen: list[Tensor] = rpn.filter_proposals(boxes, scores, sizes, counts)[0]
    return chosen


def _exact(model: Any) -> tuple[str, ...]:
    """MobileNetV3's body: in 8-bit integers it cost 0.06 of mAP, for proposals are chosen by small differences."""
    return ("backbone.body.",) if any(isinstance(part, nn.Hardswish) for part in model.backbone.modules()) else ()


def _names(model: Any) -> list[str]:
    """Names of the feature maps that boxes are pooled from; the coarsest one, "pool", is for proposals alone."""
    given = model.backbone.body.return_layers.values()
    return [name for name in given if name in model.roi_heads.box_roi_pool.featmap_names]


class _Features(nn.Module):
    """8-bit images to the maps that boxes are pooled from, and objectness and box deltas of each level."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.normalise, self.backbone, self.head = model.transform.normalise, model.backbone, model.rpn.head
        self.pooled = _names(model)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """B x 3 x H x W to maps B x C x h x w, objectness B x A x h x w, deltas B x 4A x h x w."""
        features = self.backbone(self.normalise(images))
        objectness, deltas = self.head(list(features.values()))
        return (*(features[name] for name in self.pooled), *objectness, *deltas)


class _BoxHead(nn.Module):
    """Pooled features of boxes to class logits and box deltas.

    Channels come last, as quick pooling gives them: turning them around is left to the engine, which has all threads.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.head, self.predictor = model.roi_heads.box_head, model.roi_heads.box_predictor

    def forward(self, pooled: Tensor) -> tuple[Tensor, ...]:
        """N x 7 x 7 x C to N x classes and N x 4 classes."""
        logits, deltas = self.predictor(self.head(pooled.permute(0, 3, 1, 2)))
        return logits, deltas
