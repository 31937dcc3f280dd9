"""What every generator of this package returns: an image and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Rendered:
    """One synthetic image with its annotations.

    Attributes:
        image: uint8, H x W (gray) or H x W x 3 (RGB).
        boxes: float32, N x 4, ``x0 y0 x1 y1`` in pixels, ends exclusive, inside the image.
        labels: int32, N, an index into the generator's ``CLASSES`` for each box.
        label: The class of the whole image, when it is made for classification.
    """

    image: npt.NDArray[np.uint8]
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    label: int | None = None

    def __post_init__(self) -> None:
        """Hold the two columns to one length."""
        assert self.boxes.shape == (len(self.labels), 4), (self.boxes.shape, self.labels.shape)
