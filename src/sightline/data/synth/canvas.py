"""The drawing surface of a board: copper polygons on a white ground, in a turned and mirrored frame.

Layouts draw in upright board coordinates; the canvas turns every point by a quarter turn, a mirror and the
degree or so by which a board lies askew on a scanner. Everything is therefore a polygon or a disc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sightline.data.synth.dice import Dice

Point = tuple[float, float]

COPPER, GROUND = 0, 255


class Canvas:
    """A square board of ``size`` pixels; see the module docstring for its frame."""

    def __init__(self, size: int, *, dice: Dice) -> None:
        self.size = size
        self.image = Image.new("L", (size, size), GROUND)
        self._draw = ImageDraw.Draw(self.image)
        pixels = self.image.load()
        assert pixels is not None
        self._pixels = pixels
        angle = dice.whole(0, 3) * math.pi / 2 + math.radians(dice.bell() * 0.3)
        mirror = -1.0 if dice.chance(0.5) else 1.0
        self._cos, self._sin = math.cos(angle), math.sin(angle)
        self._mirror = mirror

    def pixel(self, point: Point) -> Point:
        """Board coordinates to image coordinates."""
        half = self.size / 2
        x, y = (point[0] - half) * self._mirror, point[1] - half
        return (half + x * self._cos - y * self._sin, half + x * self._sin + y * self._cos)

    def polygon(self, points: Sequence[Point], *, fill: int = COPPER) -> None:
        """Fill a polygon."""
        self._draw.polygon([self.pixel(p) for p in points], fill=fill)

    def disc(self, center: Point, radius: float, *, fill: int = COPPER) -> None:
        """Fill a disc."""
        x, y = self.pixel(center)
        self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)

    def ribbon(self, path: Sequence[Point], width: float, *, offset: float = 0.0, fill: int = COPPER) -> None:
        """Fill a strip of the given width that follows a path at a sideways offset, with mitred bends."""
        left, right = shift_path(path, offset + width / 2), shift_path(path, offset - width / 2)
        self.polygon([*left, *reversed(right)], fill=fill)

    def round_rect(self, x0: float, y0: float, x1: float, y1: float, *, radius: float, fill: int = COPPER) -> None:
        """Fill a rectangle with rounded corners; a radius of 0 keeps them sharp."""
        radius = min(radius, (x1 - x0) / 2, (y1 - y0) / 2)
        points: list[Point] = []
        for cx, cy, turn in ((x1, y1, 0), (x0, y1, 1), (x0, y0, 2), (x1, y0, 3)):
            ox = cx + (radius if cx == x0 else -radius)
            oy = cy + (radius if cy == y0 else -radius)
            steps = 1 if radius < 1 else 5
            for i in range(steps):
                a = (turn + (i / (steps - 1) if steps > 1 else 0.5)) * math.pi / 2
                points.append((ox + radius * math.cos(a), oy + radius * math.sin(a)))
        self.polygon(points, fill=fill)

    def chamfer_rect(self, x0: float, y0: float, x1: float, y1: float, *, cut: float, fill: int = COPPER) -> None:
        """Fill a rectangle with its corners cut at 45 degrees."""
        c = min(cut, (x1 - x0) / 2, (y1 - y0) / 2)
        corners = [(x0 + c, y0), (x1 - c, y0), (x1, y0 + c), (x1, y1 - c)]
        self.polygon([*corners, (x1 - c, y1), (x0 + c, y1), (x0, y1 - c), (x0, y0 + c)], fill=fill)

    def all_is(self, fill: int, x0: float, y0: float, x1: float, y1: float) -> bool:
        """Whether a rectangle lies (in part) on the board and holds only one colour there."""
        ax, ay = self.pixel((x0, y0))
        bx, by = self.pixel((x1, y1))
        left, right = max(0, int(min(ax, bx)) - 1), min(self.size, int(max(ax, bx)) + 2)
        top, bottom = max(0, int(min(ay, by)) - 1), min(self.size, int(max(ay, by)) + 2)
        if right - left < 3 or bottom - top < 3:
            return False
        # Most places that are taken show it at a corner or in the middle, which is far cheaper to look at.
        for at in ((left, top), (right - 1, bottom - 1), ((left + right) // 2, (top + bottom) // 2)):
            if self._pixels[at] != fill:
                return False
        return bool(self.image.crop((left, top, right, bottom)).getextrema() == (fill, fill))

    def is_ground(self, point: Point) -> bool:
        """Whether a point is off the board or on bare ground."""
        x, y = (int(v) for v in self.pixel(point))
        if not (0 <= x < self.size and 0 <= y < self.size):
            return True
        return bool(self._pixels[x, y] == GROUND)

    def copper(self) -> npt.NDArray[np.bool_]:
        """The board as a mask, True where there is copper."""
        return np.asarray(np.asarray(self.image) == COPPER, dtype=np.bool_)


def shift_path(path: Sequence[Point], offset: float) -> list[Point]:
    """Move a path sideways so that every segment keeps its distance to the original (mitred bends)."""
    normals = []
    for (ax, ay), (bx, by) in pairwise(path):
        length = math.hypot(bx - ax, by - ay) or 1.0
        normals.append(((ay - by) / length, (bx - ax) / length))
    moved = []
    for i, (x, y) in enumerate(path):
        (ux, uy), (vx, vy) = normals[max(i - 1, 0)], normals[min(i, len(normals) - 1)]
        # |u + v|^2 / 2 = 1 + cos(turn); bounding it from below keeps the miter of a sharp turn short.
        scale = offset / max(1.0 + ux * vx + uy * vy, 0.4)
        moved.append((x + (ux + vx) * scale, y + (uy + vy) * scale))
    return moved
