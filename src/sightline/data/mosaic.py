"""Four images joined into one, each in its own quarter of the canvas."""

from collections.abc import Sequence

import numpy as np

from sightline.data.geometry import Pixels, Scene, resample
from sightline.structures import Annotation


def mosaic(scenes: Sequence[Scene], *, centre: tuple[int, int], size: tuple[int, int]) -> Scene:
    """Join four scenes around a point of a new canvas.

    Each image is scaled, keeping its shape, until it just covers its quarter, and lies with one corner at the centre;
    what hangs over the outer edge is cut off.

    Args:
        scenes: Top left, top right, bottom left, bottom right.
        centre: x and y at which the four meet, inside the canvas and not on its edge.
        size: Width and height of the canvas.

    Returns:
        The joined scene; its boxes are those of all four, in that order.
    """
    (x, y), (width, height) = centre, size
    quarters = [(0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height)]
    canvas = np.empty((height, width, 3), np.uint8)
    placed = [_place(*pair, centre, canvas) for pair in zip(scenes, quarters, strict=True)]
    columns = [scene.annotation for scene in placed]
    joined = Annotation(
        np.concatenate([column.boxes for column in columns]),
        np.concatenate([column.labels for column in columns]),
        np.concatenate([column.ignore for column in columns]),
    )
    return Scene(canvas, joined, np.concatenate([scene.visible for scene in placed]))


def _place(scene: Scene, quarter: tuple[int, int, int, int], centre: tuple[int, int], canvas: Pixels) -> Scene:
    """Paint one quarter of the canvas; the scene comes back with its boxes in the canvas's coordinates."""
    left, top, right, bottom = quarter
    width, height = right - left, bottom - top
    scale = max(width / scene.image.shape[1], height / scene.image.shape[0])
    # The window is the part that fits: from the image's far edge in the left and upper quarters, else from 0.
    x = scene.image.shape[1] - width / scale if right == centre[0] else 0.0
    y = scene.image.shape[0] - height / scale if bottom == centre[1] else 0.0
    painted = resample(scene.pixels(), (x, y, x + width / scale, y + height / scale), (width, height))
    canvas[top:bottom, left:right] = painted
    window = np.array([x, y, x, y], np.float32)
    inside = scene.moved(painted, (scene.annotation.boxes - window) * np.float32(scale))
    corner = np.array([left, top, left, top], np.float32)
    return inside.moved(canvas, inside.annotation.boxes + corner)
