"""All models by name. A new family is one file and one line here."""

from typing import Any, Literal, get_args

from torchvision import models as tv
from torchvision.models import detection as tvd

from sightline.errors import ConfigError
from sightline.models.classifier import Classifier
from sightline.models.detector import Detector
from sightline.models.nano import NanoDetector
from sightline.models.torchvision_detector import TorchvisionDetector

ModelName = Literal[
    "nano",
    "ssdlite",
    "fasterrcnn-mobilenet",
    "fasterrcnn-mobilenet-320",
    "fasterrcnn-mobilenetv2",
    "fasterrcnn-resnet50",
    "fasterrcnn-resnet50-v2",
    "retinanet",
    "fcos",
    "resnet18",
    "resnet50",
    "mobilenet",
]
CLASSIFIERS = ("resnet18", "resnet50", "mobilenet")
USUAL_SIZE = {"ssdlite": 320, "fasterrcnn-mobilenet-320": 320, "resnet18": 224, "resnet50": 224, "mobilenet": 224}


def make_model(name: str, *, num_classes: int, size: int | None = None) -> Detector:
    """A model with fresh weights for so many classes.

    Args:
        size: Side of the square that images are fitted into; None takes the model's usual one.
    """
    size = size or USUAL_SIZE.get(name, 640)
    if name == "nano":
        return NanoDetector(num_classes, size=size)
    if name in CLASSIFIERS:
        return Classifier(_make_network(name, num_classes), size=size)
    if name not in get_args(ModelName):
        raise ConfigError(f"model {name!r} is not known: take one of {', '.join(get_args(ModelName))}")
    return TorchvisionDetector(_make_torchvision(name, num_classes), size=size)


def _make_torchvision(name: str, num_classes: int) -> Any:
    fresh: dict[str, Any] = {"weights": None, "weights_backbone": None}
    with_background: dict[str, Any] = {**fresh, "num_classes": num_classes + 1}
    match name:
        case "ssdlite":
            return tvd.ssdlite320_mobilenet_v3_large(**with_background)
        case "fasterrcnn-mobilenet":
            return tvd.fasterrcnn_mobilenet_v3_large_fpn(**with_background)
        case "fasterrcnn-mobilenet-320":
            return tvd.fasterrcnn_mobilenet_v3_large_320_fpn(**with_background)
        case "fasterrcnn-resnet50":
            return tvd.fasterrcnn_resnet50_fpn(**with_background)
        case "fasterrcnn-resnet50-v2":
            return tvd.fasterrcnn_resnet50_fpn_v2(**with_background)
        case "fasterrcnn-mobilenetv2":
            return _fasterrcnn_mobilenetv2(num_classes + 1)
        case "retinanet":
            return tvd.retinanet_resnet50_fpn_v2(num_classes=num_classes, **fresh)
        case "fcos":
            return tvd.fcos_resnet50_fpn(num_classes=num_classes, **fresh)
        case other:
            raise AssertionError(other)


def _fasterrcnn_mobilenetv2(num_classes: int) -> Any:
    backbone = tv.mobilenet_v2(weights=None).features
    backbone.out_channels = 1280
    anchors = tvd.anchor_utils.AnchorGenerator(((16, 32, 64, 128, 256),), ((0.5, 1.0, 2.0),))
    return tvd.FasterRCNN(backbone, num_classes, rpn_anchor_generator=anchors)


def _make_network(name: str, num_classes: int) -> Any:
    match name:
        case "resnet18":
            return tv.resnet18(weights=None, num_classes=num_classes)
        case "resnet50":
            return tv.resnet50(weights=None, num_classes=num_classes)
        case _:
            return tv.mobilenet_v3_large(weights=None, num_classes=num_classes, dropout=0.0)
