"""Pixels and boxes that move together: flips, turns, crops, scaling.

Boxes are in edge coordinates (the centre of the first pixel is at 0.5), so a mirror image maps x to width - x exactly.
A `Scene` goes through any number of moves; only at its end is it known how much of each box is left, and only then are
boxes dropped. Flips, turns and crops are views: the pixels are copied once, by `Scene.pixels`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.structures import Annotation, Boxes

Pixels = NDArray[np.uint8]
"""H x W x 3, RGB."""

FILL = 114
"""The gray around an image that does not cover its canvas."""

_ROUNDING = 1e-4  # A whole box whose edge lies on the image's may lose a few float32 digits on its way.


@dataclass(frozen=True, slots=True)
class Scene:
    """An image on its way through augmentation.

    Attributes:
        image: H x W x 3 uint8, possibly a view with any strides.
        annotation: What is known of it; boxes lie inside the image and may have lost their area.
        visible: N float32, how much of each box's original area is still in the picture, 0 to 1.
    """

    image: Pixels
    annotation: Annotation
    visible: NDArray[np.float32]

    @classmethod
    def of(cls, image: Pixels, annotation: Annotation) -> "Scene":
        """Begin with an image as it is stored; what its boxes have outside it counts as invisible."""
        return cls(image, annotation, np.ones(len(annotation), np.float32)).moved(image, annotation.boxes)

    def moved(self, image: Pixels, boxes: Boxes) -> "Scene":
        """The scene with new pixels, and with boxes that may reach over the new image's edges."""
        inside = clip_boxes(boxes, width=image.shape[1], height=image.shape[0])
        left = (_areas(inside) / np.maximum(_areas(boxes), np.float32(1e-30))).astype(np.float32, copy=False)
        annotation = Annotation(inside, self.annotation.labels, self.annotation.ignore, self.annotation.label)
        return Scene(image, annotation, self.visible * left)

    def pixels(self) -> Pixels:
        """The image with its pixels in order in memory, as torch and Pillow want them."""
        height, width, channels = self.image.shape
        if self.image.strides[1] == channels or not self.image.size:
            return np.ascontiguousarray(self.image)
        # Copied whole, the innermost loop would be over three bytes; plane by plane is three times as fast.
        copy = np.empty((height, width, channels), np.uint8)
        for channel in range(channels):
            copy[..., channel] = self.image[..., channel]
        return copy

    def visible_annotation(self, min_visible: float) -> Annotation:
        """The annotation without the boxes that have lost more than they may; a box without area always goes.

        Regions to ignore stay however little is left of them: what is left is still not background.
        """
        found = self.annotation
        keep = ((self.visible >= min_visible - _ROUNDING) | found.ignore) & (_areas(found.boxes) > 0)
        if keep.all():
            return found
        return Annotation(found.boxes[keep], found.labels[keep], found.ignore[keep], found.label)


def clip_boxes(boxes: Boxes, *, width: int, height: int) -> Boxes:
    """Boxes cut at the edges of a canvas; one that lies outside keeps no area."""
    return np.clip(boxes, np.float32(0), np.array([width, height, width, height], np.float32))


def hflip(scene: Scene) -> Scene:
    """The mirror image, left for right."""
    x0, y0, x1, y1 = scene.annotation.boxes.T
    width = np.float32(scene.image.shape[1])
    return scene.moved(scene.image[:, ::-1], np.stack([width - x1, y0, width - x0, y1], axis=1))


def vflip(scene: Scene) -> Scene:
    """The mirror image, top for bottom."""
    x0, y0, x1, y1 = scene.annotation.boxes.T
    height = np.float32(scene.image.shape[0])
    return scene.moved(scene.image[::-1], np.stack([x0, height - y1, x1, height - y0], axis=1))


def rotate90(scene: Scene, turns: int) -> Scene:
    """The image turned counter-clockwise by `turns` quarters."""
    for _ in range(turns % 4):
        x0, y0, x1, y1 = scene.annotation.boxes.T
        width = np.float32(scene.image.shape[1])
        scene = scene.moved(np.rot90(scene.image), np.stack([y0, width - x1, y1, width - x0], axis=1))
    return scene


def crop(scene: Scene, *, left: int, top: int, width: int, height: int) -> Scene:
    """The part of the image from (left, top), `width` x `height` pixels large."""
    corner = np.array([left, top, left, top], np.float32)
    return scene.moved(scene.image[top : top + height, left : left + width], scene.annotation.boxes - corner)


def scale_translate(scene: Scene, *, scale: float, shift: tuple[float, float]) -> Scene:
    """The image made larger or smaller about its centre and moved, on a canvas of the same size.

    Args:
        scene: The image and its boxes.
        scale: Size of the result in terms of the original, > 0.
        shift: Pixels to the right and downwards.
    """
    height, width = scene.image.shape[:2]
    x, y = (side * (1 - scale) / 2 + by for side, by in zip((width, height), shift, strict=True))
    canvas = np.full((height, width, 3), FILL, np.uint8)
    left, right = _painted(x, width * scale, width)
    top, bottom = _painted(y, height * scale, height)
    if left < right and top < bottom:
        window = ((left - x) / scale, (top - y) / scale, (right - x) / scale, (bottom - y) / scale)
        canvas[top:bottom, left:right] = resample(scene.pixels(), window, (right - left, bottom - top))
    offset = np.array([x, y, x, y], np.float32)
    return scene.moved(canvas, scene.annotation.boxes * np.float32(scale) + offset)


def resample(image: Pixels, window: tuple[float, float, float, float], size: tuple[int, int]) -> Pixels:
    """The window (x0, y0, x1, y1, fractions allowed) of an image as `size` (width, height) pixels."""
    height, width = image.shape[:2]
    x0, y0, x1, y1 = window
    box = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))  # Rounding may reach past.
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, box=box))


def _painted(offset: float, length: float, canvas: int) -> tuple[int, int]:
    """The whole pixels of one side of a canvas that an image of `length` pixels covers from `offset` on."""
    return max(0, int(np.ceil(offset))), min(canvas, int(np.floor(offset + length)))


def _areas(boxes: Boxes) -> NDArray[np.float32]:
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], np.float32(0))
    areas: NDArray[np.float32] = sides[:, 0] * sides[:, 1]
    return areas
