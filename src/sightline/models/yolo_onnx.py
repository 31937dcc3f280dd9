"""`yolo-onnx`: YOLOv8, YOLO11 and what has their output, from an ONNX file, without the package that made it.

The file is the model: ONNX Runtime and OpenVINO run it, nothing trains it. Around it are Ultralytics' preprocessing and
suppression, so that its figures can be compared with those of its own validation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.errors import ConfigError, FormatError
from sightline.models.factory import YOLO_ONNX
from sightline.models.inference import ModelSource
from sightline.models.yolo_file import parse_onnx, read_onnx_bytes
from sightline.models.yolo_graph import YoloInput, check_output, input_of
from sightline.models.yolo_inference import GRAPH, YoloInference

if TYPE_CHECKING:
    from sightline.models.detector import Detector


@dataclass(frozen=True)
class YoloOnnx:
    """A YOLO that came as an ONNX file.

    Attributes:
        content: The file; it takes 8-bit images.
        given: What it takes.
        inference: The code around it.
    """

    content: bytes
    given: YoloInput
    inference: YoloInference

    def source(self, key: str | None = None) -> ModelSource:
        """What an engine is made of."""
        return ModelSource(self.inference, refuse_network, {GRAPH: self.content}, key)


def make_yolo_onnx(content: bytes, given: YoloInput, *, size: int, stride: int) -> YoloOnnx:
    """The model in a file that takes 8-bit images.

    Raises:
        ConfigError: The file takes images of another size only.
    """
    return YoloOnnx(content, given, YoloInference(size, stride=stride, fixed=given))


def load_yolo(file: Path, *, size: int, stride: int, num_classes: int) -> YoloOnnx:
    """The model in the file of a bundle; strangers write those too, so it is looked at as closely as at its import."""
    content = read_onnx_bytes(file)
    model = parse_onnx(content, str(file))
    given = input_of(model, str(file))
    if not given.takes_bytes:
        raise FormatError(f"{str(file)!r} does not take 8-bit images: make the bundle with sightline import")
    check_output(model, str(file), num_classes=num_classes)
    return make_yolo_onnx(content, given, size=size, stride=stride)


def refuse_network() -> "Detector":
    """Raise: the file has no network that torch could run or train."""
    raise ConfigError(
        f"a model {YOLO_ONNX!r} is an ONNX file, which cannot be trained, and engine 'torch' cannot run it: take "
        "onnxruntime or openvino"
    )
