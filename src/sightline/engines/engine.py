"""What runs a model's graphs, and the plain torch code around them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sightline.models.detector import Detector, Found
from sightline.models.roi_align import QuickRoIAlign

SCORE_TOLERANCE, PIXEL_TOLERANCE = 0.01, 1.0
"""How far scores and boxes of an engine may be from the model's own."""


class Engine(ABC):
    """Finds what the model finds, within the tolerance.

    Several threads may share an engine.

    Attributes:
        name: Which engine it is.
        reason: Why it was chosen, in words, if the choice was left open.
        threads: How many run the graphs.
    """

    name: str
    reason: str = ""

    def __init__(self, model: Detector, *, threads: int, torch_threads: int = 1) -> None:
        """An engine of a model.

        Args:
            torch_threads: How many torch may use. One for engines with threads of their own: the tensors around the
                graphs are small, and torch's threads would go on waiting on the cores that the graphs need.
        """
        self._model = model
        self._torch_threads = torch_threads
        self.threads = threads

    @abstractmethod
    def run(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Execute a graph of the model; the outputs are good until the same thread calls again."""

    def detect(self, images: Tensor) -> list[Found]:
        """What is in each image; see `Detector.detect`.

        Args:
            images: B x 3 x H x W uint8.
        """
        if len(images) == 0:
            return []
        with torch.inference_mode(), _limited_torch(self._torch_threads):
            return self._model.detect_with(self.run, images)


def copy_for_inference(model: Detector) -> Detector:
    """A copy that an engine may change, with what is quicker and differs by rounding."""
    own = copy.deepcopy(model).eval().requires_grad_(False)
    for module in own.modules():
        if isinstance(module, QuickRoIAlign):
            module.always = True
    return own


@contextmanager
def _limited_torch(threads: int) -> Iterator[None]:
    """So many threads for torch; the number is the process's, so it is put back."""
    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
