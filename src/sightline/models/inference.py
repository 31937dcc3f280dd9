"""The inference side of a model family: its letterbox, and the code around the graphs that an engine runs.

Nothing here needs torch. Families whose code around the graphs is NumPy run on ONNX Runtime and OpenVINO without it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.models.letterbox import Letterbox
from sightline.structures import Detections

if TYPE_CHECKING:
    from sightline.models.detector import Detector

Array = Any
"""A NumPy array or a torch tensor: whatever the engine computes with, on its device."""


class Run(Protocol):
    """Executes a graph by its name."""

    def __call__(self, name: str, *inputs: Array) -> tuple[Array, ...]:
        """The outputs of the graph, in its order."""
        ...


class InferenceModel(ABC):
    """What remains of a model family when an engine runs its graphs.

    Attributes:
        letterbox: Brings images to the model's input size, on square canvases.
        rectangular: Whether canvases that are not square are as good, so that most of the padding may be left out. Not
            where boxes are laid out relative to the canvas (SSD), nor where strides are (torchvision's anchors: at 480
            pixels its stride of 64 becomes 60).
        min_score: Lowest score that `detect` returns; None where the family does not filter by score.
        bfloat16: Graphs whose detections stay within the engines' tolerance when their layers run in bfloat16; a test
            with trained models verifies it.
        uses_torch: Whether `detect` computes with torch.
    """

    letterbox: Letterbox
    rectangular: bool = False
    min_score: float | None = None
    bfloat16: frozenset[str] = frozenset()
    uses_torch: bool = False

    @abstractmethod
    def detect(self, run: Run, images: NDArray[np.uint8]) -> list[Detections]:
        """The detections in each image, in its pixels, after non-maximum suppression.

        Args:
            run: Executes the graphs.
            images: B x 3 x H x W, of sides that the letterbox can give; at least one image.
        """

    def raise_min_score(self, score: float | None) -> None:
        """Leave out detections below a score that no caller will ask for; sorting them out would take time."""
        if score is not None and self.min_score is not None:
            self.min_score = max(self.min_score, score)


@dataclass(frozen=True)
class ModelSource:
    """What an engine is made of.

    Attributes:
        load: Loads the network, which imports torch.
        onnx: The graphs of a model that came as ONNX files, which has no network to load.
        key: The hash of the model, under which compiled forms are cached.
    """

    inference: InferenceModel
    load: "Callable[[], Detector]"
    onnx: Mapping[str, bytes] | None = None
    key: str | None = None


def check_sides(images: Array, multiple: int) -> None:
    """Raise ValueError unless both sides of the images are multiples of a number."""
    if images.shape[-2] % multiple or images.shape[-1] % multiple:
        raise ValueError(f"images are {tuple(images.shape)}; expected sides that are multiples of {multiple}")


def to_numpy(array: Array) -> NDArray[Any]:
    """An output of a graph as a NumPy array of at least single precision."""
    if not isinstance(array, np.ndarray):
        array = array.detach()
        array = (array if array.element_size() >= 4 else array.float()).cpu().numpy()
    # Half precision has no room for pixel coordinates, nor for the small scores of the background.
    values: NDArray[Any] = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
    return values


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Softmax over the last axis; NaN where a model has diverged."""
    with np.errstate(invalid="ignore"):
        raised = np.exp(logits - logits.max(-1, keepdims=True))
    shares: NDArray[Any] = raised / raised.sum(-1, keepdims=True)
    return shares


def sigmoid(logits: NDArray[Any]) -> NDArray[Any]:
    """The logistic function, without overflow."""
    raised = np.exp(-np.abs(logits))
    values: NDArray[Any] = np.where(logits >= 0, 1, raised) / (1 + raised)
    return values
