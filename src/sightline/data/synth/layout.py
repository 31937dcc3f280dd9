"""The layout of a board: which large structures it has, at which scale, and in which order they are drawn.

Pours, discs and bars come first, then bundles of traces that clear a corridor for themselves, then the small
parts of `parts.py` wherever there is room. No two themes share a scale, as boards of different makers do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from sightline.data.synth import parts
from sightline.data.synth.canvas import COPPER, GROUND, Canvas, Point
from sightline.data.synth.dice import Dice

# A bundle of `lanes` traces: each lane is (sideways offset, width).
Lanes = list[tuple[float, float]]


@dataclass(frozen=True)
class Style:
    """The scale of a board, in pixels: ranges to draw trace widths and gaps from, and how busy it is."""

    trace: tuple[float, float]
    gap: tuple[float, float]
    num_parts: int


_FINE = Style(trace=(7, 11), gap=(12, 24), num_parts=34)
_MEDIUM = Style(trace=(11, 20), gap=(11, 26), num_parts=22)
_COARSE = Style(trace=(20, 44), gap=(16, 36), num_parts=12)
_BARS = Style(trace=(24, 70), gap=(22, 60), num_parts=3)


def draw_layout(canvas: Canvas, *, dice: Dice) -> None:
    """Draw a whole board without defects."""
    theme = dice.weighted((0.24, 0.26, 0.16, 0.12, 0.12, 0.10))
    style = (_FINE, _MEDIUM, _COARSE, _MEDIUM, _COARSE, _BARS)[theme]
    if theme == 3:
        _draw_pours(canvas, dice=dice)
    elif theme == 4:
        _draw_discs(canvas, dice=dice)
    elif theme == 5:
        _draw_bars(canvas, style, dice=dice)
    elif dice.chance(0.35):
        _draw_pours(canvas, dice=dice, most=1)
    for _ in range((1, 2, 2, 0, 0, 0)[theme] + dice.whole(-1, 1)):
        _draw_bundle(canvas, style, dice=dice)
    for _ in range(_scaled(style.num_parts, canvas.size, dice=dice)):
        parts.add_part(canvas, trace=dice.between(*style.trace), gap=style.gap[0], dice=dice)
    for _ in range(_scaled(12, canvas.size, dice=dice)):
        parts.add_hole(canvas, dice=dice)


def _scaled(count: int, size: int, *, dice: Dice) -> int:
    """As many parts an area as on a board of 640 pixels, half to one and a half times over."""
    return 1 + int(count * (size / 640) ** 2 * dice.between(0.5, 1.5))


def _draw_pours(canvas: Canvas, *, dice: Dice, most: int = 3) -> None:
    """One to three copper areas, split by channels."""
    s = canvas.size
    for i in range(dice.whole(1, most)):
        w, h = dice.between(0.35, 1.1) * s, dice.between(0.2, 0.7) * s
        x, y = dice.between(-0.15, 0.75) * s, dice.between(-0.15, 0.75) * s
        if i == 0 and most > 1 and dice.chance(0.5):
            x, y, w, h = -0.1 * s, dice.between(-0.1, 0.3) * s, 1.2 * s, dice.between(0.6, 1.1) * s
        clearance = dice.between(12, 40)
        canvas.round_rect(x - clearance, y - clearance, x + w + clearance, y + h + clearance, radius=0, fill=GROUND)
        if dice.chance(0.5):
            canvas.round_rect(x, y, x + w, y + h, radius=dice.between(0, 60))
        else:
            canvas.chamfer_rect(x, y, x + w, y + h, cut=dice.between(0, 120))
        for _ in range(dice.whole(0, 2)):
            _cut_channel(canvas, (x, y, x + w, y + h), dice=dice)
        if dice.chance(0.4):
            _nest_frames(canvas, (x, y, x + w, y + h), dice=dice)


def _cut_channel(canvas: Canvas, area: tuple[float, float, float, float], *, dice: Dice) -> None:
    """A straight, bent or meandering channel through a copper area."""
    x0, y0, x1, y1 = area
    width = dice.between(8, 24)
    y = dice.between(y0 + 30, max(y0 + 31, y1 - 30))
    kind = dice.whole(0, 2)
    if kind == 0:
        path: list[Point] = [(x0 - 5, y), (x1 + 5, y)]
    elif kind == 1:
        bend, drop = dice.between(x0, x1), dice.between(-120, 120)
        path = [(x0 - 5, y), (bend, y), (bend + abs(drop), y + drop), (x1 + 400, y + drop)]
    else:
        depth, period = dice.between(40, 90), dice.between(50, 110)
        path, x, low = [(x0 - 5, y)], x0 + dice.between(20, 80), False
        while x < x1:
            path += [(x, y + depth * low), (x, y + depth * (not low))]
            x, low = x + period, not low
        path.append((x1 + 5, path[-1][1]))
    canvas.ribbon(path, width, fill=GROUND)


def _nest_frames(canvas: Canvas, area: tuple[float, float, float, float], *, dice: Dice) -> None:
    """Rounded frames, one in another, as of a coil or a shielded region."""
    x0, y0, x1, y1 = area
    inset, step = dice.between(20, 60), dice.between(10, 26)
    for i in range(dice.whole(1, 4) * 2):
        d = inset + i * step
        if min(x1 - x0, y1 - y0) < 2 * d + 30:
            return
        radius = max(60 - d * 0.4, 8)
        canvas.round_rect(x0 + d, y0 + d, x1 - d, y1 - d, radius=radius, fill=COPPER if i % 2 else GROUND)


def _draw_discs(canvas: Canvas, *, dice: Dice) -> None:
    """A very large disc or ring that the board only shows a part of, with radial slots and mounting holes."""
    s = canvas.size
    center = (dice.between(-0.3, 1.3) * s, dice.between(-0.3, 1.3) * s)
    radius = dice.between(0.4, 0.9) * s
    canvas.disc(center, radius)
    if dice.chance(0.5):
        canvas.disc(center, radius * dice.between(0.25, 0.6), fill=GROUND)
    first, num_slots, width = dice.between(0, math.tau), dice.whole(2, 9), dice.between(9, 26)
    for i in range(num_slots):
        a = first + i * math.tau / num_slots
        end = (center[0] + radius * 1.1 * math.cos(a), center[1] + radius * 1.1 * math.sin(a))
        canvas.ribbon([center, end], width, fill=GROUND)
    for _ in range(dice.whole(0, 3)):
        hole = (dice.between(0, s), dice.between(0, s))
        r = dice.between(20, 60)
        canvas.disc(hole, r, fill=GROUND)
        if dice.chance(0.5):
            canvas.disc(hole, r - dice.between(10, 16), fill=COPPER)


def _draw_bars(canvas: Canvas, style: Style, *, dice: Dice) -> None:
    """Straight bars over the whole board, some of them ending on it."""
    y, s = dice.between(-60, 0), canvas.size
    width, gap = dice.between(*style.trace), dice.between(*style.gap)
    while y < s:
        w, g = width * dice.between(0.5, 1.3), gap * dice.between(0.6, 1.2)
        end = dice.between(0.2, 0.8) * s if dice.chance(0.15) else s + 30
        canvas.ribbon([(-30, y + w / 2), (end, y + w / 2)], w)
        y += w + g


def _draw_bundle(canvas: Canvas, style: Style, *, dice: Dice) -> None:
    """Parallel traces that bend together by 45 degrees, in a corridor of their own."""
    lanes, total = _plan_lanes(style, dice=dice)
    path = _wander(canvas.size, room=total, dice=dice)
    if dice.chance(0.8) and not _is_clear(canvas, path, room=total):
        return
    canvas.ribbon(path, total + 2 * dice.between(12, 26), fill=GROUND)
    for offset, width in lanes:
        run = path
        if len(path) > 2 and dice.chance(0.2):
            run = _shorten(path, keep=dice.between(0.3, 0.9), reverse=dice.chance(0.5))
        canvas.ribbon(run, width, offset=offset)
        if run is not path:
            parts.end_trace(canvas, run, offset=offset, width=width, room=style.gap[0], dice=dice)


def _plan_lanes(style: Style, *, dice: Dice) -> tuple[Lanes, float]:
    """Offsets and widths of a bundle's traces, centred on the path, and the bundle's total width."""
    trace, gap = dice.between(*style.trace), dice.between(*style.gap)
    position, lanes = 0.0, Lanes()
    for _ in range(dice.whole(2, 9 if style.trace[1] < 25 else 5)):
        width = trace * dice.between(1.3, 2.4) if dice.chance(0.15) else trace
        lanes.append((position + width / 2, width))
        position += width + gap
    total = position - gap
    return [(offset - total / 2, width) for offset, width in lanes], total


def _wander(size: int, *, room: float, dice: Dice) -> list[Point]:
    """A path over the board, from its left edge, in steps of 45 degree turns that are never undone at once."""
    x, y, heading = -40.0, dice.between(0.0, 1.0) * size, 0
    path: list[Point] = [(x, y)]
    for _ in range(8):
        length = room * 0.9 + dice.between(40, 300)
        angle = heading * math.pi / 4
        x, y = x + length * math.cos(angle), y + length * math.sin(angle)
        path.append((x, y))
        if not (-room < x < size + room and -room < y < size + room):
            return path
        heading = dice.pick([h for h in (heading - 1, heading + 1) if -2 <= h <= 2])
    angle = heading * math.pi / 4
    return [*path, (x + 2 * size * math.cos(angle), y + 2 * size * math.sin(angle))]


def _is_clear(canvas: Canvas, path: list[Point], *, room: float) -> bool:
    """Whether a corridor along a path is free, looked at every 30 pixels or so."""
    for (ax, ay), (bx, by) in pairwise(path):
        steps = int(math.hypot(bx - ax, by - ay) / 30) + 1
        for i in range(steps):
            x, y = ax + (bx - ax) * i / steps, ay + (by - ay) * i / steps
            for shift in (-room / 2, 0, room / 2):
                # Neither axis is the path's normal on every segment, so the corridor's cross is looked at.
                if not (canvas.is_ground((x + shift, y)) and canvas.is_ground((x, y + shift))):
                    return False
    return True


def _shorten(path: list[Point], *, keep: float, reverse: bool) -> list[Point]:
    """The first part of a path (or the last), ending in the middle of a segment."""
    whole = path[::-1] if reverse else path
    last = max(1, int(len(whole) * keep))
    (ax, ay), (bx, by) = whole[last - 1], whole[last]
    cut = [*whole[:last], ((ax + bx) / 2, (ay + by) / 2)]
    return cut[::-1] if reverse else cut
