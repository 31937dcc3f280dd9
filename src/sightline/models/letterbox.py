"""Images brought to a model's input size without distortion, and boxes brought back.

The image lies in the upper left corner of a gray canvas, so a box is only ever scaled, never moved; or in its middle,
for models that have learned from images there.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from sightline.data.geometry import FILL, Pixels
from sightline.structures import Annotation, Boxes


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Scales images to fit a square, keeping their aspect, and pads them.

    Attributes:
        size: The longest side, in pixels; the canvas is that, rounded up to a multiple.
        multiple: Both sides of the canvas are multiples of this.
        square: Whether every canvas is as large as the largest, so that any images stack into a batch; else it is as
            small as the image allows, which is quicker for one image at a time.
        upscale: Whether images smaller than `size` are made larger.
        centred: Whether the image lies in the middle of its canvas; else in the upper left corner, so that a box is
            only ever scaled, never moved.

    Example:
        >>> fit = Letterbox(640)
        >>> fit.canvas(width=1280, height=720), fit.scale(width=1280, height=720)
        ((640, 640), 0.5)
    """

    size: int
    multiple: int = 32
    square: bool = True
    upscale: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or self.multiple < 1:
            raise ValueError(f"size is {self.size} and multiple {self.multiple}; expected both to be at least 1")

    def __call__(self, pixels: Pixels, annotation: Annotation) -> tuple[Pixels, Annotation]:
        """The image on its canvas, and its boxes there."""
        height, width = pixels.shape[:2]
        new_width, new_height = self.fitted(width=width, height=height)
        ratio = np.array([new_width / width, new_height / height] * 2, np.float32)
        offset = np.array(self.offset(width=width, height=height) * 2, np.float32)
        boxes = annotation.boxes * ratio + offset
        moved = Annotation(boxes, annotation.labels, annotation.ignore, annotation.label)
        return self.place(pixels, width=width, height=height), moved

    def place(self, pixels: Pixels, *, width: int, height: int) -> Pixels:
        """An image on its canvas.

        Args:
            pixels: The image, or a smaller version of it that is no smaller than `fitted`.
            width: Of the image itself.
            height: Of the image itself.
        """
        new_width, new_height = self.fitted(width=width, height=height)
        if pixels.shape[:2] != (new_height, new_width):
            pixels = _resize(pixels, new_width, new_height)
        across, down = self.canvas(width=width, height=height)
        left, top = self.offset(width=width, height=height)
        return _pad(pixels, across, down, left=left, top=top)

    def offset(self, *, width: int, height: int) -> tuple[int, int]:
        """How far the image lies from the left and the top of its canvas."""
        if not self.centred:
            return 0, 0
        across, down = self.canvas(width=width, height=height)
        new_width, new_height = self.fitted(width=width, height=height)
        return (across - new_width) // 2, (down - new_height) // 2

    def scale(self, *, width: int, height: int) -> float:
        """The factor by which an image is made smaller (or larger)."""
        factor = self.size / max(width, height)
        return factor if self.upscale else min(factor, 1.0)

    def canvas(self, *, width: int, height: int) -> tuple[int, int]:
        """Width and height of what an image becomes."""
        sides = (self.size, self.size) if self.square else self.fitted(width=width, height=height)
        across, down = (-(-side // self.multiple) * self.multiple for side in sides)
        return across, down

    def fitted(self, *, width: int, height: int) -> tuple[int, int]:
        """Width and height of the image on its canvas."""
        factor = self.scale(width=width, height=height)
        return max(1, round(width * factor)), max(1, round(height * factor))


def boxes_to_original(boxes: Boxes, letterbox: Letterbox, *, width: int, height: int) -> Boxes:
    """Boxes found on the canvas, in pixels of the image as it was and cut at its edges.

    Args:
        boxes: N x 4, xyxy on the canvas.
        letterbox: What made the canvas.
        width: Of the original image.
        height: Of the original image.

    Example:
        >>> fit = Letterbox(320)
        >>> boxes_to_original(np.array([[0, 0, 32, 16]], np.float32), fit, width=640, height=640).tolist()
        [[0.0, 0.0, 64.0, 32.0]]
    """
    # The image's sides were rounded to whole pixels: each has its own ratio.
    new_width, new_height = letterbox.fitted(width=width, height=height)
    offset = np.array(letterbox.offset(width=width, height=height) * 2, np.float32)
    ratio = np.array([width / new_width, height / new_height] * 2, np.float32)
    found: Boxes = np.clip((boxes - offset) * ratio, np.float32(0), np.array([width, height] * 2, np.float32))
    return found


def _resize(pixels: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def _pad(pixels: Pixels, width: int, height: int, *, left: int = 0, top: int = 0) -> Pixels:
    if pixels.shape[:2] == (height, width):
        return pixels
    canvas = np.full((height, width, 3), FILL, np.uint8)
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas
