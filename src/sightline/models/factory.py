"""All models by name. A new family is one file and one line here."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torchvision import models as tv
from torchvision.models import detection as tvd
from torchvision.ops import MultiScaleRoIAlign

from sightline.errors import ConfigError
from sightline.models.classifier import Classifier
from sightline.models.detector import Detector
from sightline.models.family import Family, Recipe
from sightline.models.nano import NanoDetector
from sightline.models.torchvision_detector import TorchvisionDetector
from sightline.models.yolo import NAMES as YOLO_NAMES
from sightline.models.yolo import YoloDetector
from sightline.models.yolo_metadata import AGPL
from sightline.models.yolo_onnx import NAME as YOLO_ONNX

_RESNET18 = tv.ResNet18_Weights.IMAGENET1K_V1.url
_RESNET50 = tv.ResNet50_Weights.IMAGENET1K_V1.url
_MOBILENET2 = tv.MobileNet_V2_Weights.IMAGENET1K_V1.url
_MOBILENET3 = tv.MobileNet_V3_Large_Weights.IMAGENET1K_V1.url


def make_model(name: str, *, num_classes: int, size: int | None = None) -> Detector:
    """A model with fresh weights for so many classes.

    Args:
        size: Side of the square that images are fitted into; None takes the model's usual one.
    """
    family = family_of(name)
    return family.make(num_classes, size or family.size)


def extras_of(name: str) -> tuple[str, ...]:
    """The extras of Sightline without which a model cannot be loaded.

    >>> extras_of("yolo-onnx"), extras_of("nano")
    (('engines',), ())
    """
    if name == YOLO_ONNX:
        return ("engines",)
    return ("yolo",) if name in YOLO_NAMES else ()


def family_of(name: str) -> Family:
    """What is known of the model of this name."""
    if name == YOLO_ONNX:
        raise ConfigError(
            f"model {name!r} is an ONNX file, which `sightline import` makes a bundle of; it cannot be made anew or "
            f"trained: take one of {', '.join(FAMILIES)}"
        )
    if name not in FAMILIES:
        raise ConfigError(f"model {name!r} is not known: take one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _detector(
    build: Callable[..., nn.Module],
    *,
    coco: Any = None,
    imagenet: str = "",
    background: int = 1,
    size: int = 640,
    depthwise: bool = False,
) -> Family:
    """A detector of torchvision; some count the background as a class."""

    def make(num_classes: int, size: int) -> Detector:
        network = build(weights=None, weights_backbone=None, num_classes=num_classes + background)
        return TorchvisionDetector(_with_quick_statistics(network), size=size)

    urls = {"coco": coco.COCO_V1.url if coco else "", "imagenet": imagenet}
    return Family(make, size=size, depthwise=depthwise, urls={name: url for name, url in urls.items() if url})


def _classifier(build: Callable[..., nn.Module], *, imagenet: str, depthwise: bool = False, **options: Any) -> Family:
    """A classifier of torchvision."""

    def make(num_classes: int, size: int) -> Detector:
        network = build(weights=None, num_classes=num_classes, **options)
        return Classifier(_with_quick_statistics(network), size=size)

    return Family(
        make,
        task="classification",
        size=224,
        depthwise=depthwise,
        urls={"imagenet": imagenet},
        scratch=Recipe("adamw", lr=1e-3, weight_decay=0.05),
        tuned=Recipe("adamw", lr=3e-4, weight_decay=0.05),
    )


def _yolo(name: str) -> Family:
    """A detector of the package ultralytics, whose weights are files that its owner has."""
    return Family(
        lambda num_classes, size: YoloDetector(name, num_classes, size=size),
        scratch=Recipe("adamw", lr=1e-3, weight_decay=5e-4),
        tuned=Recipe("adamw", lr=1e-3, weight_decay=5e-4),
        licence=AGPL,
    )


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


FAMILIES: dict[str, Family] = {
    "nano": Family(
        lambda num_classes, size: NanoDetector(num_classes, size=size),
        scratch=Recipe("adamw", lr=2e-3, weight_decay=0.05),
        tuned=Recipe("adamw", lr=1e-3, weight_decay=0.05),
        licence="Apache-2.0",
    ),
    "ssdlite": _detector(
        tvd.ssdlite320_mobilenet_v3_large,
        coco=tvd.SSDLite320_MobileNet_V3_Large_Weights,
        size=320,
        depthwise=True,
    ),
    "fasterrcnn-mobilenet": _detector(
        tvd.fasterrcnn_mobilenet_v3_large_fpn,
        coco=tvd.FasterRCNN_MobileNet_V3_Large_FPN_Weights,
        imagenet=_MOBILENET3,
    ),
    "fasterrcnn-mobilenet-320": _detector(
        tvd.fasterrcnn_mobilenet_v3_large_320_fpn,
        coco=tvd.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights,
        imagenet=_MOBILENET3,
        size=320,
    ),
    "fasterrcnn-mobilenetv2": _detector(_fasterrcnn_mobilenetv2, imagenet=_MOBILENET2),
    "fasterrcnn-resnet50": _detector(
        tvd.fasterrcnn_resnet50_fpn, coco=tvd.FasterRCNN_ResNet50_FPN_Weights, imagenet=_RESNET50
    ),
    "fasterrcnn-resnet50-v2": _detector(
        tvd.fasterrcnn_resnet50_fpn_v2, coco=tvd.FasterRCNN_ResNet50_FPN_V2_Weights, imagenet=_RESNET50
    ),
    "retinanet": _detector(
        tvd.retinanet_resnet50_fpn_v2, coco=tvd.RetinaNet_ResNet50_FPN_V2_Weights, imagenet=_RESNET50, background=0
    ),
    "fcos": _detector(tvd.fcos_resnet50_fpn, coco=tvd.FCOS_ResNet50_FPN_Weights, imagenet=_RESNET50, background=0),
    **{name: _yolo(name) for name in YOLO_NAMES},
    "resnet18": _classifier(tv.resnet18, imagenet=_RESNET18),
    "resnet50": _classifier(tv.resnet50, imagenet=_RESNET50),
    "mobilenet": _classifier(tv.mobilenet_v3_large, imagenet=_MOBILENET3, depthwise=True, dropout=0.0),
}
CLASSIFIERS = tuple(name for name, family in FAMILIES.items() if family.task == "classification")
