"""Tiny colour images with circles, squares and triangles: the smallest thing a detector can be tested on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sightline.data.synth.dice import Dice
from sightline.data.synth.rendered import Rendered

CLASSES = ("circle", "square", "triangle")

Square = tuple[int, int, int, int]

_TRIES = 12
_NOISE = 24


def render_shapes(*, seed: int, index: int, size: int = 64, max_shapes: int = 3) -> Rendered:
    """Render an image with none to a few filled shapes that do not overlap, and their exact boxes.

    Args:
        seed: Chooses the dataset.
        index: Chooses the image within it.
        size: Width and height in pixels, at least 16.
        max_shapes: The most shapes an image can have; every number from 0 on is equally likely.

    Example:
        >>> shapes = render_shapes(seed=0, index=1)
        >>> shapes.image.shape, len(shapes.boxes) == len(shapes.labels)
        ((64, 64, 3), True)
    """
    dice = Dice(seed=seed, index=index, stream=2)
    scene = _Scene(size, dice=dice)
    labels, boxes = [], []
    for _ in range(dice.whole(0, max_shapes)):
        label = dice.whole(0, len(CLASSES) - 1)
        box = scene.add(label, dice=dice)
        if box is not None:
            labels.append(label)
            boxes.append(box)
    return Rendered(
        image=scene.finish(dice=dice),
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int32),
    )


def render_shape(*, seed: int, index: int, size: int = 64) -> Rendered:
    """Render an image with exactly one shape, for classification: ``label`` is ``index % 3``, and there are no boxes.

    Example:
        >>> CLASSES[render_shape(seed=0, index=4).label]
        'square'
    """
    dice = Dice(seed=seed, index=index, stream=3)
    scene = _Scene(size, dice=dice)
    label = index % len(CLASSES)
    scene.add(label, dice=dice)
    return Rendered(
        image=scene.finish(dice=dice),
        boxes=np.zeros((0, 4), dtype=np.float32),
        labels=np.zeros(0, dtype=np.int32),
        label=label,
    )


class _Scene:
    """A plain ground on which shapes are put, and the squares they took."""

    def __init__(self, size: int, *, dice: Dice) -> None:
        self._size = size
        self._ground = dice.whole(40, 215)
        self._image = Image.new("RGB", (size, size), (self._ground,) * 3)
        self._taken: list[Square] = []

    def add(self, label: int, *, dice: Dice) -> Square | None:
        """Draw a shape where there is room; return its box, or None when there is none."""
        for _ in range(_TRIES):
            side = dice.whole(self._size // 6, self._size // 3)
            x, y = dice.whole(1, self._size - side - 1), dice.whole(1, self._size - side - 1)
            box = (x, y, x + side, y + side)
            if any(_overlap(box, other) for other in self._taken):
                continue
            self._taken.append(box)
            _draw_shape(self._image, label, box, fill=self._color(dice=dice))
            return box
        return None

    def finish(self, *, dice: Dice) -> npt.NDArray[np.uint8]:
        """The image, with noise over all of it so that no two pixels of the ground need be equal."""
        noise = dice.rng.random((self._size, self._size, 3), dtype=np.float32) * (2 * _NOISE) - _NOISE
        return np.clip(np.asarray(self._image) + noise, 0, 255).astype(np.uint8)

    def _color(self, *, dice: Dice) -> tuple[int, int, int]:
        """A colour that stands out from the ground in at least one channel by more than the noise."""
        color = [dice.whole(0, 255) for _ in range(3)]
        color[dice.whole(0, 2)] = (self._ground + 128) % 256
        return (color[0], color[1], color[2])


def _draw_shape(image: Image.Image, label: int, box: Square, *, fill: tuple[int, int, int]) -> None:
    draw = ImageDraw.Draw(image)
    # Pillow's corners belong to the shape, while the box's ends are exclusive.
    x0, y0, x1, y1 = box[0], box[1], box[2] - 1, box[3] - 1
    if label == 0:
        draw.ellipse((x0, y0, x1, y1), fill=fill)
    elif label == 1:
        draw.rectangle((x0, y0, x1, y1), fill=fill)
    else:
        draw.polygon([((x0 + x1) // 2, y0), (x1, y1), (x0, y1)], fill=fill)


def _overlap(a: Square, b: Square) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]
