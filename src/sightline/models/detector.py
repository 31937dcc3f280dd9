"""What a model family implements, and the values it takes and gives.

Training, evaluation, tuning, detection and serving know only this.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.models.graph import Graph, run_in_torch
from sightline.models.inference import InferenceModel, ModelSource
from sightline.models.letterbox import Letterbox
from sightline.structures import Detections


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


class Detector(nn.Module, ABC):
    """A model family.

    In training, images come as B x 3 x H x W uint8 on the model's device; the model scales and normalises them itself,
    and works with any H and W that the letterbox can give.

    Attributes:
        size: Side of the square that images are fitted into.
        heads: Prefixes of the names of the weights that tell classes apart; others do not depend on the classes.
        task: What the model gives: detections, or one class per image.
    """

    size: int
    heads: tuple[str, ...] = ()
    task: Literal["detection", "classification"] = "detection"

    def fit(self, weights: Mapping[str, Tensor]) -> None:
        """Take the shape of weights that are about to be loaded, where the family leaves it open. Few do."""

    @property
    @abstractmethod
    def inference(self) -> InferenceModel:
        """The code around the graphs, for engines; it shares nothing with the model but the weights."""

    @property
    def letterbox(self) -> Letterbox:
        """Brings an image and its boxes to the model's input size; picklable, for it runs in the loader.

        Training uses it as it is; inference uses `make_preprocessor`, whose canvas need not be square.
        """
        return self.inference.letterbox

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @abstractmethod
    def loss(self, images: Tensor, targets: list[Target], keys: list[int]) -> list[LossTerm]:
        """The terms of the loss of some images, possibly none of them.

        Args:
            keys: A random number for each image, the only randomness a loss may use.
        """

    @abstractmethod
    def graphs(self) -> dict[str, Graph]:
        """The parts of inference that an engine may compile; they share the weights of the model."""

    def detect(self, canvases: NDArray[np.uint8]) -> list[Detections]:
        """The detections on each canvas, by the modules as they are.

        Args:
            canvases: B x H x W x 3, RGB; there may be none.
        """
        if len(canvases) == 0:
            return []
        return self.inference.detect(run_in_torch(self.graphs(), self.device), canvases.transpose(0, 3, 1, 2))

    def source(self, key: str | None = None) -> ModelSource:
        """What an engine is made of; the engine copies what it changes."""
        return ModelSource(self.inference, lambda: self, key=key)


def zero_loss(model: nn.Module) -> Tensor:
    """The loss of no images: zero, with a gradient of zero for every parameter, so that no worker lacks one."""
    return torch.stack([parameter.sum() for parameter in model.parameters() if parameter.requires_grad]).sum() * 0


def total_loss(terms: list[LossTerm]) -> Tensor:
    """The loss of one worker that has the whole batch."""
    parts = [term.weight * term.total / term.normaliser.clamp(min=1) for term in terms]
    return torch.stack(parts).sum()
