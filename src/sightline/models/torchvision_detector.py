"""torchvision's detectors behind the Detector protocol.

In training their forward pass is used as it is; what is replaced is what depends on the batch or on global randomness:
images come in one size (no resizing inside), proposals are sampled by each image's own key, and losses are given as
sums with the normalisers that torchvision divided by. Detection is their networks as graphs and their post-processing.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchvision.models.detection import FCOS, FasterRCNN, RetinaNet
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from sightline.models.detector import Detector, LossTerm, Target, zero_loss
from sightline.models.graph import Graph
from sightline.models.inference import Array, InferenceModel, Run, to_numpy
from sightline.models.kept_anchors import KeptAnchors
from sightline.models.letterbox import Letterbox
from sightline.models.normalise import Normalise
from sightline.models.one_stage import detect_in_one_stage, one_stage_graphs
from sightline.models.roi_align import QuickRoIAlign
from sightline.models.two_stage import detect_in_two_stages, two_stage_graphs
from sightline.structures import Detections


class TorchvisionDetector(Detector):
    """Faster R-CNN, RetinaNet, FCOS or SSD.

    Attributes:
        background: 1 where class 0 is the background in the model's own numbering, else 0.
    """

    def __init__(self, model: nn.Module, *, size: int) -> None:
        super().__init__()
        self.model: Any = model
        self.size = size
        self.background = 1 if isinstance(model, FasterRCNN | SSD) else 0
        own: Any = self.model.transform  # SSDlite was trained on other means than the rest.
        self.model.transform = _Transform(Normalise(own.image_mean, own.image_std))
        self.heads = self._heads()
        first: Any = self.model.rpn if self.has_two_stages else self.model
        self.anchors = KeptAnchors(first.anchor_generator)
        self._counts: dict[str, Tensor] = {}
        self._keys: list[int] = []
        self._watch()

    @property
    def inference(self) -> "TorchvisionInference":
        """See `Detector.inference`."""
        return TorchvisionInference(self)

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """Torchvision's losses, multiplied by what it divided them by."""
        if len(images) == 0:
            nothing = zero_loss(self)
            return [LossTerm(name, nothing, nothing.detach()) for name in self._terms()]
        self._keys = keys
        self._counts = {"images": torch.tensor(float(len(images)))}
        losses = self.model(images, [self._target(target) for target in targets])
        # It divided by one where there was nothing to count; the normaliser of such a share is zero all the same.
        return [
            LossTerm(name, losses[name] * (n := self._counts[count]).clamp(min=1), n)
            for name, count in self._terms().items()
        ]

    def graphs(self) -> dict[str, Graph]:
        """One, or two for Faster R-CNN."""
        return two_stage_graphs(self.model) if self.has_two_stages else one_stage_graphs(self.model)

    @property
    def has_two_stages(self) -> bool:
        """Whether a first stage proposes boxes for a second one."""
        return isinstance(self.model, FasterRCNN)

    def _target(self, target: Target) -> dict[str, Tensor]:
        keep = ~target.ignore
        return {"boxes": target.boxes[keep], "labels": target.labels[keep] + self.background}

    def _terms(self) -> dict[str, str]:
        """Names of the losses, and of the count that each was divided by."""
        match self.model:
            case FasterRCNN():
                return {
                    "loss_objectness": "anchors",
                    "loss_rpn_box_reg": "anchors",
                    "loss_classifier": "proposals",
                    "loss_box_reg": "proposals",
                }
            case RetinaNet():
                return {"classification": "images", "bbox_regression": "images"}
            case FCOS():
                return dict.fromkeys(("classification", "bbox_regression", "bbox_ctrness"), "foreground")
            case SSD():
                return dict.fromkeys(("bbox_regression", "classification"), "foreground")
            case other:
                raise TypeError(f"{type(other).__name__} is not a detector that is known here")

    def _heads(self) -> tuple[str, ...]:
        match self.model:
            case FasterRCNN():
                return ("model.roi_heads.box_predictor.",)
            case RetinaNet() | FCOS():
                return ("model.head.classification_head.cls_logits.",)
            case _:
                return ("model.head.classification_head.",)

    def _watch(self) -> None:
        """Put keyed samplers and quicker pooling in place, and note what losses are divided by."""
        match self.model:
            case FasterRCNN():
                for part, name in ((self.model.rpn, "anchors"), (self.model.roi_heads, "proposals")):
                    part.fg_bg_sampler = _KeyedSampler(part.fg_bg_sampler, self, name)
                rpn = self.model.rpn
                rpn.assign_targets_to_anchors = _labels_as_precise_as_anchors(rpn.assign_targets_to_anchors)
                self.model.roi_heads.box_roi_pool = QuickRoIAlign.like(self.model.roi_heads.box_roi_pool)
            case SSD():
                self.model.compute_loss = self._counting(self.model.compute_loss)
            case FCOS():
                self.model.head.compute_loss = self._counting(self.model.head.compute_loss)

    def _counting(self, compute_loss: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
        def count(targets: Any, outputs: Any, anchors: Any, matched: list[Tensor]) -> dict[str, Tensor]:
            foreground = torch.stack([(found >= 0).sum() for found in matched]).sum()
            self._counts["foreground"] = foreground.float()
            return compute_loss(targets, outputs, anchors, matched)

        return count


class TorchvisionInference(InferenceModel):
    """Torchvision's own code around the networks: proposals, pooling and post-processing, in torch.

    Small images are made larger too: published weights and anchors know them so.
    """

    uses_torch = True

    def __init__(self, detector: TorchvisionDetector) -> None:
        self.letterbox = Letterbox(detector.size, upscale=True)
        # Held to the tolerance in bfloat16 for the plain head only, not yet for the one with convolutions (v2).
        plain = detector.has_two_stages and isinstance(detector.model.roi_heads.box_head, TwoMLPHead)
        self.bfloat16 = frozenset({"box_head"} if plain else ())
        self._detector = detector

    def detect(self, run: Run, images: NDArray[np.uint8]) -> list[Detections]:
        """Torchvision's detections, with labels numbered as in the dataset."""

        def run_tensors(name: str, *inputs: Array) -> tuple[Tensor, ...]:
            return tuple(map(torch.as_tensor, run(name, *inputs)))

        own = self._detector
        detect = detect_in_two_stages if own.has_two_stages else detect_in_one_stage
        with torch.inference_mode():
            results = detect(own.model, own.anchors, run_tensors, torch.from_numpy(images))
        return [
            Detections(
                to_numpy(result["boxes"]),
                to_numpy(result["scores"]),
                result["labels"].int().cpu().numpy() - own.background,
            )
            for result in results
        ]


def _labels_as_precise_as_anchors(assign: Callable[..., Any]) -> Callable[..., Any]:
    """Torchvision's labels are float32, and torch gives cross-entropy in the precision of the labels."""

    def assigned(anchors: list[Tensor], targets: Any) -> tuple[list[Tensor], list[Tensor]]:
        labels, boxes = assign(anchors, targets)
        precise = [
            label.to(torch.promote_types(label.dtype, own.dtype)) for label, own in zip(labels, anchors, strict=True)
        ]
        return precise, boxes

    return assigned


class _KeyedSampler:
    """Samples positives and negatives of each image by the image's own key, and counts them."""

    def __init__(self, sampler: BalancedPositiveNegativeSampler, owner: TorchvisionDetector, name: str) -> None:
        self._size, self._fraction = sampler.batch_size_per_image, sampler.positive_fraction
        self._owner, self._name = owner, name

    def __call__(self, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        chosen = [self._choose(found, key) for found, key in zip(matched, self._owner._keys, strict=True)]
        total = sum(int(positive.sum() + negative.sum()) for positive, negative in chosen)
        self._owner._counts[self._name] = torch.tensor(float(total))
        return [positive for positive, _ in chosen], [negative for _, negative in chosen]

    def _choose(self, found: Tensor, key: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(key)
        positive, negative = torch.where(found >= 1)[0], torch.where(found == 0)[0]
        num_positive = min(int(self._size * self._fraction), len(positive))
        num_negative = min(self._size - num_positive, len(negative))
        masks = []
        for indices, count in ((positive, num_positive), (negative, num_negative)):
            order = torch.randperm(len(indices), generator=generator)[:count].to(indices.device)
            masks.append(torch.zeros_like(found, dtype=torch.uint8).index_fill_(0, indices[order], 1))
        return masks[0], masks[1]


class _Transform(nn.Module):
    """In place of torchvision's: normalises, and leaves sizes alone."""

    def __init__(self, normalise: Normalise) -> None:
        super().__init__()
        self.normalise = normalise

    def forward(self, images: Tensor, targets: Any = None) -> tuple[ImageList, Any]:
        """Images in torchvision's own structure."""
        height, width = images.shape[-2:]
        return ImageList(self.normalise(images), [(height, width)] * len(images)), targets

    def postprocess(self, result: Any, _shapes: Any, _originals: Any) -> Any:
        """Boxes are in pixels of the given image already."""
        return result
