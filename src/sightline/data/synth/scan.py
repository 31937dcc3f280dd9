"""Binarisation: turns clean drawings into what a thresholded scan shows, with edges a pixel or so rough.

A pixel is copper when enough of its 3 x 3 neighbourhood is; how much is enough varies over the board, partly in
soft waves and partly pixel by pixel. The rule is local, so a window can be developed again after a defect was
drawn into it, and the roughness of defects and of everything else is one and the same.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from sightline.data.synth.dice import Dice

Mask = npt.NDArray[np.bool_]
Box = tuple[int, int, int, int]

_SLACK = 512


class Scan:
    """A clean copper mask and the threshold field through which it is seen.

    Args:
        clean: Bool, size x size, True for copper. Drawn into by the defects.
        dice: Chooses the part of the noise that this board gets.
    """

    def __init__(self, clean: Mask, *, dice: Dice) -> None:
        size = len(clean)
        self.clean = np.pad(clean, 1, mode="edge").view(np.uint8)
        x, y = dice.whole(0, _SLACK), dice.whole(0, _SLACK)
        self._needed = _threshold_field(size + _SLACK)[y : y + size, x : x + size]
        self.size = size

    def develop(self, box: Box | None = None) -> Mask:
        """The scanned mask of a box (``x0 y0 x1 y1``), or of the whole board."""
        x0, y0, x1, y1 = box or (0, 0, self.size, self.size)
        a = self.clean[y0 : y1 + 2, x0 : x1 + 2]
        rows = a[:-2] + a[1:-1] + a[2:]
        counts = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
        return np.asarray(counts >= self._needed[y0:y1, x0:x1])

    def window(self, box: Box) -> npt.NDArray[np.uint8]:
        """A writable view of the clean mask (1 for copper) in a box."""
        x0, y0, x1, y1 = box
        return self.clean[y0 + 1 : y1 + 1, x0 + 1 : x1 + 1]


@lru_cache(maxsize=4)
def _threshold_field(size: int) -> npt.NDArray[np.uint8]:
    """How many of the nine pixels must be copper: 5 on the average, 3 to 7 where the edge is rough."""
    rng = Dice(seed=0, index=size, stream=9).rng
    wave = _soft_noise(rng, size=size, cell=24)
    patch = np.clip(_soft_noise(rng, size=size, cell=30) * 2.5 - 0.3, 0.0, 1.0)
    fine = rng.random((size, size), dtype=np.float32) * 2 - 1
    field = np.clip(4.8 + 1.4 * wave + 2.6 * fine * patch, 2.6, 7.0)
    return np.asarray(np.rint(field), dtype=np.uint8)


def _soft_noise(rng: np.random.Generator, *, size: int, cell: int) -> npt.NDArray[np.float32]:
    """Smooth noise in about [-1, 1] whose bumps are ``cell`` pixels wide."""
    coarse = rng.random((size // cell + 2, size // cell + 2), dtype=np.float32) * 2 - 1
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BILINEAR))
