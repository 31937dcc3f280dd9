"""torchvision's networks with fresh weights, as detectors and classifiers of ours."""

from typing import Any

from torch import nn
from torchvision import models as tv
from torchvision.models import detection as tvd
from torchvision.ops import MultiScaleRoIAlign

from sightline.models.classifier import Classifier
from sightline.models.torchvision_detector import TorchvisionDetector


def make_detector(num_classes: int, *, size: int, build: str, background: int) -> TorchvisionDetector:
    """A detector.

    Args:
        build: Name of the function of `torchvision.models.detection` that builds the network, or of one of ours.
        background: 1 where the network counts the background as a class, else 0.
    """
    builder = _OURS.get(build) or getattr(tvd, build)
    network = builder(weights=None, weights_backbone=None, num_classes=num_classes + background)
    return TorchvisionDetector(_with_quick_statistics(network), size=size)


def make_classifier(num_classes: int, *, size: int, build: str, **options: Any) -> Classifier:
    """A classifier.

    Args:
        build: Name of the function of `torchvision.models` that builds the network.
        options: Further arguments of that.
    """
    network = getattr(tv, build)(weights=None, num_classes=num_classes, **options)
    return Classifier(_with_quick_statistics(network), size=size)


def _with_quick_statistics(network: nn.Module) -> nn.Module:
    """BatchNorm that follows the weights within tens of steps.

    The MobileNets of torchvision come with a momentum for runs of 100,000s of steps (0.01, in SSDlite 0.03). In ours of
    hundreds their statistics would still be those of the first weights when the model is scored.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1
    return network


def _fasterrcnn_mobilenetv2(*, num_classes: int, **_fresh: None) -> nn.Module:
    """With a feature pyramid at strides 8 to 64, fit for small objects; on the last map alone it hardly learns them."""
    backbone = tvd.backbone_utils.mobilenet_backbone(
        backbone_name="mobilenet_v2",
        weights=None,
        fpn=True,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=6,
        returned_layers=[2, 3, 5],
    )
    sizes = ((16, 32), (48, 64), (96, 128), (256, 512))
    anchors = tvd.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
    network: nn.Module = tvd.FasterRCNN(
        backbone,
        num_classes,
        rpn_anchor_generator=anchors,
        box_roi_pool=MultiScaleRoIAlign(["0", "1", "2"], output_size=7, sampling_ratio=2),
    )
    return network


_OURS = {"fasterrcnn_mobilenetv2": _fasterrcnn_mobilenetv2}
