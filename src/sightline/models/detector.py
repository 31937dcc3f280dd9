"""What a model family implements, and the values it takes and gives.

Training, evaluation, tuning, detection and serving know only this.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.models.graph import Graph, Run, run_in_torch
from sightline.structures import Annotation

Pixels = NDArray[np.uint8]
"""H x W x 3, RGB."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be found in one image, in pixels of the image that the model is given.

    Attributes:
        boxes: N x 4 float, xyxy.
        labels: N int64, indices into the class names.
        ignore: N bool; neither object nor background.
        label: The class of the whole image, for classifiers.
    """

    boxes: Tensor
    labels: Tensor
    ignore: Tensor
    label: int | None = None


@dataclass(frozen=True, slots=True)
class LossTerm:
    """One part of a loss, not yet divided.

    The loss is the sum over terms of `weight * total / max(normaliser, 1)`. Workers add up their normalisers first, so
    that N workers with a share of the batch each have the gradients of one worker with the whole batch.

    Attributes:
        total: Scalar with gradient, summed over the images of this worker's share.
        normaliser: Scalar without gradient, a count over the same images; may be zero.
    """

    name: str
    total: Tensor
    normaliser: Tensor
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in one image, in pixels of the image that the model was given, best first.

    Attributes:
        boxes: N x 4 float, xyxy.
        scores: N float, 0 to 1.
        labels: N int64.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


class Detector(nn.Module, ABC):
    """A model family.

    Images come as B x 3 x H x W uint8 on the model's device; the model scales and normalises them itself, and works
    with any H and W that `preprocess` can give.

    Attributes:
        size: Side of the square that images are fitted into.
        heads: Beginnings of the names of the weights that tell classes apart; others do not depend on the classes.
        rectangular: Whether canvases that are not square, of sides that `preprocess` could give, are as good: a caller
            with images of one shape may then leave out most of the padding. Not where boxes are laid out relative to
            the canvas (SSD), nor where strides are (torchvision's anchors: at 480 pixels its stride of 64 becomes 60).
    """

    size: int
    heads: tuple[str, ...] = ()
    rectangular: bool = False

    def fit(self, weights: Mapping[str, Tensor]) -> None:
        """Take the shape of weights that are about to be loaded, where the family leaves it open. Few do."""

    @abstractmethod
    def preprocess(self) -> Callable[[Pixels, Annotation], tuple[Pixels, Annotation]]:
        """A picklable function that brings an image and its boxes to the model's input size; runs in the loader.

        Training uses it as it is; what detects uses `make_preprocessor`, whose canvas need not be square.
        """

    @abstractmethod
    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """The terms of the loss of some images, possibly none of them.

        Args:
            keys: A random number for each image, the only randomness a loss may use.
        """

    @abstractmethod
    def graphs(self) -> dict[str, Graph]:
        """The parts of `detect` that an engine may compile; they share the weights of the model."""

    @abstractmethod
    def detect_with(self, run: Run, images: Tensor) -> list[Found]:
        """What is in each image, above the model's lowest threshold, after non-maximum suppression.

        Args:
            run: Executes the graphs.
            images: One or more.
        """

    def detect(self, images: Tensor) -> list[Found]:
        """What is in each image, found by the modules as they are; no images give nothing."""
        return self.detect_with(run_in_torch(self.graphs()), images) if len(images) else []


def zero_loss(model: nn.Module) -> Tensor:
    """The loss of no images: zero, with a gradient of zero for every parameter, so that no worker lacks one."""
    return torch.stack([parameter.sum() for parameter in model.parameters() if parameter.requires_grad]).sum() * 0


def total_loss(terms: list[LossTerm]) -> Tensor:
    """The loss of one worker that has the whole batch."""
    parts = [term.weight * term.total / term.normaliser.clamp(min=1) for term in terms]
    return torch.stack(parts).sum()
