"""`yolo-onnx`: YOLOv8, YOLO11 and what has their output, from an ONNX file, without the package that made it.

The file is the model: engines run it, nothing trains it. Around it are Ultralytics' preprocessing and suppression, so
that figures can be compared with those of its own validation.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from sightline.errors import ConfigError, FormatError
from sightline.models.detector import Found, LossTerm, Target
from sightline.models.graph import Graph, OnnxModule, Run
from sightline.models.yolo_base import YoloBase
from sightline.models.yolo_file import parse_onnx, read_onnx_bytes
from sightline.models.yolo_graph import YoloInput, check_output, input_of

NAME = "yolo-onnx"
_GRAPH = "predictions"


class YoloOnnx(YoloBase):
    """See the module docstring.

    Args:
        content: An ONNX file that takes 8-bit images.
        given: What it takes.
        size: Longest side of the images it is given, in pixels.
        stride: Both sides of what it is given are multiples of this.
    """

    def __init__(self, content: bytes, given: YoloInput, *, size: int, stride: int = 32) -> None:
        super().__init__(size=size, stride=stride)
        if given.side not in (None, size):
            raise ConfigError(
                f"size is {size}, and the ONNX file of this model takes {given.side} only: leave the size out, or "
                "import a file that was exported with dynamic axes"
            )
        self.rectangular = given.side is None
        self.given = given
        self.file = OnnxModule(content)

    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """Raise: an ONNX file is not trained."""
        raise ConfigError(f"model {NAME!r} is an ONNX file and cannot be trained: take another --model")

    def graphs(self) -> dict[str, Graph]:
        """One: the file."""
        return {_GRAPH: Graph(self.file, (self.given.as_input(self.stride),), ("predictions",))}

    @torch.no_grad()
    def detect_with(self, run: Run, images: Tensor) -> list[Found]:
        """See `Detector.detect_with`."""
        found: list[Found] = []
        for part in self._parts(self._checked(images)):
            (outputs,) = run(_GRAPH, part)
            found += [self.choose(output) for output in outputs]
        return found[: len(images)]

    def _parts(self, images: Tensor) -> Iterator[Tensor]:
        """As many images at once as the file takes; the last part is filled up."""
        batch = self.given.batch or len(images)
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            missing = batch - len(part)
            yield functional.pad(part, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else part

    def _checked(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        side = self.given.side
        if height % self.stride or width % self.stride or (side is not None and (height, width) != (side, side)):
            expected = f"{side} x {side}" if side else f"sides that are multiples of {self.stride}"
            raise ValueError(f"images are {tuple(images.shape)}; expected {expected}")
        return images


def load_yolo(file: Path, *, size: int, stride: int, num_classes: int) -> YoloOnnx:
    """The model in the file of a bundle; strangers write those too, so it is looked at as closely as at its import."""
    content = read_onnx_bytes(file)
    model = parse_onnx(content, str(file))
    given = input_of(model, str(file))
    if not given.takes_bytes:
        raise FormatError(f"{str(file)!r} does not take 8-bit images: make the bundle with sightline import")
    check_output(model, str(file), num_classes=num_classes)
    return YoloOnnx(content, given, size=size, stride=stride)
