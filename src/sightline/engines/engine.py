"""What runs a model's graphs, and the family's own code around them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.models.inference import Array, InferenceModel
from sightline.structures import Detections

SCORE_TOLERANCE, PIXEL_TOLERANCE = 0.01, 1.0
"""How far scores and boxes of an engine may be from the model's own."""


class Engine(ABC):
    """Detects what the model detects, within the tolerance. Several threads may share an engine.

    Attributes:
        name: Which engine it is.
        model: The code around the graphs.
        threads: How many run the graphs.
    """

    name: str

    def __init__(self, model: InferenceModel, *, threads: int, torch_threads: int = 1) -> None:
        """An engine of a model.

        Args:
            torch_threads: How many torch may use. One for engines with threads of their own: the tensors around the
                graphs are small, and torch's threads would go on waiting on the cores that the graphs need.
        """
        self.model = model
        self.threads = threads
        self._torch_threads = torch_threads
        self._changed = ExitStack()

    @abstractmethod
    def run(self, name: str, *inputs: Array) -> tuple[Array, ...]:
        """Execute a graph of the model; the outputs are good until the same thread calls again."""

    def detect(self, canvases: NDArray[np.uint8]) -> list[Detections]:
        """The detections on each canvas, in its pixels.

        Args:
            canvases: B x H x W x 3, RGB; there may be none.
        """
        if len(canvases) == 0:
            return []
        with self._limited():
            return self.model.detect(self.run, canvases.transpose(0, 3, 1, 2))

    def close(self) -> None:
        """Give back what the engine has changed in this process."""
        self._changed.close()

    def _limited(self) -> AbstractContextManager[None]:
        return limited_torch(self._torch_threads) if self.model.uses_torch else nullcontext()


def to_contiguous(array: Array) -> NDArray[Any]:
    """An input of a graph as a contiguous NumPy array."""
    if not isinstance(array, np.ndarray):
        array = array.detach().cpu().numpy()
    return np.ascontiguousarray(array)


_LOCK = threading.Lock()
_holders = ExitStack()
_num_holders = 0


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Keep torch to one thread until the last of those who ask for it is done, whatever their order."""
    global _num_holders
    with _LOCK:
        _num_holders += 1
        if _num_holders == 1:
            _holders.enter_context(limited_torch(1))
    try:
        yield
    finally:
        with _LOCK:
            _num_holders -= 1
            if _num_holders == 0:
                _holders.close()


@contextmanager
def limited_torch(threads: int) -> Iterator[None]:
    """Limit torch to a number of threads. The number is the process's, so it is restored."""
    import torch

    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
