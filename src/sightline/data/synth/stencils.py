"""The shapes of defects: hand-drawn-like blobs, strokes, hooks and streaks, as masks of a wanted size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sightline.data.synth.canvas import Point
from sightline.data.synth.dice import Dice

Stencil = npt.NDArray[np.bool_]


class Sheet:
    """A small sheet of w x h pixels to draw one stencil on."""

    def __init__(self, w: int, h: int) -> None:
        self.w, self.h = max(w, 2), max(h, 2)
        self._image = Image.new("L", (self.w, self.h), 0)
        self._draw = ImageDraw.Draw(self._image)

    def fit(self, points: Sequence[Point], *, inset: float) -> list[Point]:
        """Scale points so that they span the sheet, less an inset on every side."""
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        x0, y0 = min(xs), min(ys)
        sx = max(self.w - 1 - 2 * inset, 0) / ((max(xs) - x0) or 1.0)
        sy = max(self.h - 1 - 2 * inset, 0) / ((max(ys) - y0) or 1.0)
        return [(inset + (x - x0) * sx, inset + (y - y0) * sy) for x, y in points]

    def fill(self, points: Sequence[Point], *, ink: int = 1) -> None:
        """Fill a polygon."""
        self._draw.polygon(list(points), fill=ink)

    def stroke(self, points: Sequence[Point], *, width: float) -> None:
        """Draw a line with a round tip at every point."""
        if width < 1.5:
            self._draw.line(list(points), fill=1)
            return
        self._draw.line(list(points), fill=1, width=round(width))
        r = width / 2 - 0.5
        for x, y in points:
            self._draw.ellipse((x - r, y - r, x + r, y + r), fill=1)

    def stencil(self) -> Stencil:
        """What was drawn."""
        return np.asarray(self._image) > 0


def draw_blob(w: int, h: int, *, dice: Dice) -> Stencil:
    """An irregular spot."""
    sheet = Sheet(w, h)
    count, phase = dice.whole(7, 12), dice.between(0, math.tau)
    points = []
    for i in range(count):
        angle, radius = phase + i * math.tau / count, dice.between(0.45, 1.0)
        points.append((radius * math.cos(angle), radius * math.sin(angle)))
    if dice.chance(0.5):
        sheet.fill(sheet.fit(points, inset=0))
    else:
        # The mark of a thick pen, set down and moved a little.
        pen = min(w, h) * dice.between(0.5, 0.75)
        sheet.stroke(sheet.fit(points[: dice.whole(3, 4)], inset=pen / 2 - 0.5), width=pen)
    return sheet.stencil()


def draw_stroke(w: int, h: int, *, dice: Dice, width: float | None = None) -> Stencil:
    """A stroke of a pen from one corner to the opposite one, a little bowed and not quite steady."""
    sheet = Sheet(w, h)
    width = width or max(3.5, min(w, h) * dice.between(0.25, 0.55))
    count = 2 + (max(w, h) > 12) + (max(w, h) > 24) * 2
    bow = dice.bell() * 0.12
    points = []
    for i in range(count):
        t = i / (count - 1)
        points.append((t, t + (bow + dice.bell() * 0.04) * math.sin(math.pi * t)))
    fitted = sheet.fit(points, inset=width / 2 - 0.5)
    sheet.stroke(fitted, width=width)
    return _flipped(sheet.stencil(), dice=dice)


def draw_hook(w: int, h: int, *, dice: Dice) -> Stencil:
    """A J, an L, or a dash with a head."""
    sheet = Sheet(w, h)
    width = max(4.0, min(w, h) * dice.between(0.3, 0.45))
    points = [(0.0, dice.between(0.0, 0.4)), (dice.between(0.4, 0.9), 0.0), (1.0, dice.between(0.6, 1.0))]
    sheet.stroke(sheet.fit(points, inset=width / 2 - 0.5), width=width)
    return _flipped(sheet.stencil(), dice=dice)


def draw_streaks(w: int, h: int, *, dice: Dice) -> Stencil:
    """A region that was only partly erased: thin scratches side by side, some of them running together."""
    sheet = Sheet(w, h)
    slope = dice.between(-1.2, 1.2)
    for _ in range(dice.whole(4, 8)):
        x, y = dice.between(0.1, 0.9) * w, dice.between(0.1, 0.9) * h
        reach = dice.between(0.25, 0.6) * max(w, h)
        angle = slope + dice.bell() * 0.4
        dx, dy = reach * math.cos(angle), reach * math.sin(angle)
        sheet.stroke([(x - dx, y - dy), (x + dx, y + dy)], width=dice.pick((2, 2, 3)))
    return sheet.stencil()


def draw_any(w: int, h: int, *, weights: tuple[float, float, float, float], dice: Dice) -> Stencil:
    """A blob, stroke, hook or streaks, drawn in proportion to the weights."""
    kind = dice.weighted(weights)
    if kind == 0 or min(w, h) < 5:
        return draw_blob(w, h, dice=dice)
    if kind == 1:
        return draw_stroke(w, h, dice=dice)
    return draw_hook(w, h, dice=dice) if kind == 2 else draw_streaks(w, h, dice=dice)


def _flipped(stencil: Stencil, *, dice: Dice) -> Stencil:
    """Mirror at random, so that strokes lean both ways."""
    if dice.chance(0.5):
        stencil = stencil[::-1]
    return stencil[:, ::-1] if dice.chance(0.5) else stencil
