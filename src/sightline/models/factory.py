"""All models by name. A new family is one file and one line here."""

from typing import TYPE_CHECKING

from sightline.errors import ConfigError
from sightline.models.family import Family, Recipe
from sightline.models.yolo_metadata import AGPL, NAMES

if TYPE_CHECKING:
    from sightline.models.detector import Detector

YOLO_ONNX = "yolo-onnx"
"""A YOLO that came as an ONNX file; it has no line below, for it is never made anew."""


def make_model(name: str, *, num_classes: int, size: int | None = None) -> "Detector":
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
    return FAMILIES[name].extras if name in FAMILIES else ()


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
    build: str, *, coco: str = "", imagenet: str = "", background: int = 1, size: int = 640, depthwise: bool = False
) -> Family:
    """A detector of torchvision; some count the background as a class."""
    published = {"coco": f"torchvision.models.detection:{coco}.COCO_V1" if coco else "", "imagenet": imagenet}
    return Family(
        "sightline.models.torchvision_networks:make_detector",
        {"build": build, "background": background},
        size=size,
        depthwise=depthwise,
        published={name: entry for name, entry in published.items() if entry},
    )


def _classifier(build: str, *, imagenet: str, depthwise: bool = False, **options: float) -> Family:
    """A classifier of torchvision."""
    return Family(
        "sightline.models.torchvision_networks:make_classifier",
        {"build": build, **options},
        inference="sightline.models.classifier_inference:ClassifierInference",
        task="classification",
        size=224,
        depthwise=depthwise,
        published={"imagenet": imagenet},
        scratch=Recipe("adamw", lr=1e-3, weight_decay=0.05),
        tuned=Recipe("adamw", lr=3e-4, weight_decay=0.05),
    )


def _yolo(name: str) -> Family:
    """A detector of the package ultralytics, whose weights are files that its owner has."""
    return Family(
        "sightline.models.yolo:YoloDetector",
        {"name": name},
        inference="sightline.models.yolo_inference:YoloInference",
        scratch=Recipe("adamw", lr=1e-3, weight_decay=5e-4),
        tuned=Recipe("adamw", lr=1e-3, weight_decay=5e-4),
        licence=AGPL,
        extras=("yolo",),
    )


def _imagenet(name: str) -> str:
    return f"torchvision.models:{name}.IMAGENET1K_V1"


_RESNET18, _RESNET50 = _imagenet("ResNet18_Weights"), _imagenet("ResNet50_Weights")
_MOBILENET2, _MOBILENET3 = _imagenet("MobileNet_V2_Weights"), _imagenet("MobileNet_V3_Large_Weights")

FAMILIES: dict[str, Family] = {
    "nano": Family(
        "sightline.models.nano:NanoDetector",
        inference="sightline.models.nano_inference:NanoInference",
        scratch=Recipe("adamw", lr=2e-3, weight_decay=0.05),
        tuned=Recipe("adamw", lr=1e-3, weight_decay=0.05),
        licence="Apache-2.0",
    ),
    "ssdlite": _detector(
        "ssdlite320_mobilenet_v3_large", coco="SSDLite320_MobileNet_V3_Large_Weights", size=320, depthwise=True
    ),
    "fasterrcnn-mobilenet": _detector(
        "fasterrcnn_mobilenet_v3_large_fpn", coco="FasterRCNN_MobileNet_V3_Large_FPN_Weights", imagenet=_MOBILENET3
    ),
    "fasterrcnn-mobilenet-320": _detector(
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        coco="FasterRCNN_MobileNet_V3_Large_320_FPN_Weights",
        imagenet=_MOBILENET3,
        size=320,
    ),
    "fasterrcnn-mobilenetv2": _detector("fasterrcnn_mobilenetv2", imagenet=_MOBILENET2),
    "fasterrcnn-resnet50": _detector(
        "fasterrcnn_resnet50_fpn", coco="FasterRCNN_ResNet50_FPN_Weights", imagenet=_RESNET50
    ),
    "fasterrcnn-resnet50-v2": _detector(
        "fasterrcnn_resnet50_fpn_v2", coco="FasterRCNN_ResNet50_FPN_V2_Weights", imagenet=_RESNET50
    ),
    "retinanet": _detector(
        "retinanet_resnet50_fpn_v2", coco="RetinaNet_ResNet50_FPN_V2_Weights", imagenet=_RESNET50, background=0
    ),
    "fcos": _detector("fcos_resnet50_fpn", coco="FCOS_ResNet50_FPN_Weights", imagenet=_RESNET50, background=0),
    **{name: _yolo(name) for name in NAMES},
    "resnet18": _classifier("resnet18", imagenet=_RESNET18),
    "resnet50": _classifier("resnet50", imagenet=_RESNET50),
    "mobilenet": _classifier("mobilenet_v3_large", imagenet=_MOBILENET3, depthwise=True, dropout=0.0),
}
CLASSIFIERS = tuple(name for name, family in FAMILIES.items() if family.task == "classification")
