"""The small parts of a board: pads, vias, rows of an IC's pads, marks, and the traces that leave them.

Each is added only where there is room for it. Several look like a defect and are none, on purpose: drill holes
(pin-hole), dots and marks (copper), trace ends (open), tight pads (short).
"""

from __future__ import annotations

import math

from sightline.data.synth.canvas import COPPER, GROUND, Canvas, Point, shift_path
from sightline.data.synth.dice import Dice

_GLYPHS: tuple[tuple[tuple[Point, ...], ...], ...] = (
    (((0, 0), (0, 2)), ((1, 0), (1, 2)), ((0, 1), (1, 1))),
    (((0, 0), (1, 0), (0, 2), (1, 2)),),
    (((0, 0), (1, 0)), ((0.5, 0), (0.5, 2))),
    (((0, 0), (0, 2), (1, 2)),),
    (((-0.5, 1), (1.5, 1)), ((0.5, 0), (0.5, 2))),
)


def add_part(canvas: Canvas, *, trace: float, gap: float, dice: Dice) -> None:
    """Try to add one part of a random kind at a random place; where there is no room, nothing happens."""
    at = (dice.between(0, canvas.size), dice.between(0, canvas.size))
    kind = dice.weighted((0.25, 0.25, 0.22, 0.18, 0.10))
    if kind == 0:
        _add_pad(canvas, at, trace=trace, dice=dice)
    elif kind == 1:
        _add_via(canvas, at, trace=trace, dice=dice)
    elif kind == 2:
        _add_chip(canvas, at, trace=trace, gap=gap, dice=dice)
    elif kind == 3:
        _add_pad_row(canvas, at, trace=trace, gap=gap, dice=dice)
    else:
        _add_mark(canvas, at, dice=dice)


def add_hole(canvas: Canvas, *, dice: Dice) -> None:
    """Try to drill a hole, or to set a pad with a clearance, into copper at a random place."""
    x, y = dice.between(0, canvas.size), dice.between(0, canvas.size)
    r = dice.between(5, 13) if dice.chance(0.6) else dice.between(13, 36)
    if not canvas.all_is(COPPER, x - r - 7, y - r - 7, x + r + 7, y + r + 7):
        return
    canvas.disc((x, y), r, fill=GROUND)
    if r > 24:
        canvas.disc((x, y), r - dice.between(9, 13))
        if dice.chance(0.6):
            canvas.disc((x, y), dice.between(4, 7), fill=GROUND)


def end_trace(canvas: Canvas, path: list[Point], *, offset: float, width: float, room: float, dice: Dice) -> None:
    """Finish a trace that stops on the board: bare, rounded, or in a via, no wider than its neighbours allow."""
    kind = dice.whole(0, 2)
    for end in (shift_path(path, offset)[i] for i in (0, -1)):
        if kind > 0:
            canvas.disc(end, width / 2 + (min(room - 7, width * 0.6) if kind == 2 else 0))
        if kind == 2 and width > 12 and dice.chance(0.6):
            canvas.disc(end, width * 0.3, fill=GROUND)


def _draw_pad(canvas: Canvas, center: Point, w: float, h: float, *, kind: int) -> None:
    x0, y0, x1, y1 = center[0] - w / 2, center[1] - h / 2, center[0] + w / 2, center[1] + h / 2
    if kind == 0:
        canvas.round_rect(x0, y0, x1, y1, radius=0)
    elif kind == 1:
        canvas.chamfer_rect(x0, y0, x1, y1, cut=min(w, h) * 0.25)
    else:
        canvas.round_rect(x0, y0, x1, y1, radius=min(w, h) * (0.25 if kind == 2 else 0.5))


def _add_pad(canvas: Canvas, at: Point, *, trace: float, dice: Dice) -> None:
    w, h = trace * dice.between(1.5, 4.5), trace * dice.between(1.5, 3.5)
    if not canvas.all_is(GROUND, at[0] - w / 2 - 10, at[1] - h / 2 - 10, at[0] + w / 2 + 10, at[1] + h / 2 + 10):
        return
    _add_tails(canvas, at, width=min(trace, h), start=max(w, h) / 2, most=2, dice=dice)
    _draw_pad(canvas, at, w, h, kind=dice.whole(0, 3))


def _add_via(canvas: Canvas, at: Point, *, trace: float, dice: Dice) -> None:
    r = max(8.0, min(trace * dice.between(0.9, 1.8), 44.0))
    if not canvas.all_is(GROUND, at[0] - r - 9, at[1] - r - 9, at[0] + r + 9, at[1] + r + 9):
        return
    _add_tails(canvas, at, width=min(trace, r * 1.6), start=r, most=2, dice=dice)
    canvas.disc(at, r)
    if dice.chance(0.55):
        canvas.disc(at, max(3.5, r * dice.between(0.28, 0.6)), fill=GROUND)


def _add_chip(canvas: Canvas, at: Point, *, trace: float, gap: float, dice: Dice) -> None:
    """The two pads of a resistor or capacitor, upright or lying."""
    w, h = trace * dice.between(1.6, 3), trace * dice.between(1.6, 3)
    reach = w / 2 + max(gap, trace) * dice.between(0.6, 1.2)
    lies = dice.chance(0.5)
    half = (reach + w / 2 + 9, h / 2 + 9)
    hx, hy = half if lies else half[::-1]
    if not canvas.all_is(GROUND, at[0] - hx, at[1] - hy, at[0] + hx, at[1] + hy):
        return
    kind = dice.whole(0, 2)
    for side in (-1, 1):
        center = (at[0] + side * reach, at[1]) if lies else (at[0], at[1] + side * reach)
        heading = (0 if side > 0 else 4) if lies else (2 if side > 0 else 6)
        if dice.chance(0.7):
            _add_tail(canvas, center, width=min(trace, h * 0.8), start=w / 2, heading=heading, dice=dice)
        _draw_pad(canvas, center, *((w, h) if lies else (h, w)), kind=kind)


def _add_pad_row(canvas: Canvas, at: Point, *, trace: float, gap: float, dice: Dice) -> None:
    """One side of an IC: fingers at a fixed pitch, some of them with a trace leaving."""
    width = trace * dice.between(1.0, 1.5)
    length, pitch = width * dice.between(2.5, 6), width + max(8.0, gap * dice.between(0.6, 1.2))
    count, rounded = dice.whole(3, 11), dice.whole(0, 3)
    total = (count - 1) * pitch + width
    x0, y0 = at[0] - total / 2, at[1] - length / 2
    if not canvas.all_is(GROUND, x0 - 9, y0 - 9, x0 + total + 9, y0 + length + 9):
        return
    for i in range(count):
        center = (x0 + width / 2 + i * pitch, at[1])
        if dice.chance(0.35):
            heading = 2 if dice.chance(0.5) else 6
            _add_tail(canvas, center, width=min(trace, width), start=length / 2, heading=heading, dice=dice)
        _draw_pad(canvas, center, width, length, kind=rounded)


def _add_mark(canvas: Canvas, at: Point, *, dice: Dice) -> None:
    """A fiducial, a test coupon's ring, or a letter."""
    r = dice.between(14, 30)
    if not canvas.all_is(GROUND, at[0] - r - 14, at[1] - r - 14, at[0] + r + 14, at[1] + r + 14):
        return
    if dice.chance(0.5):
        canvas.disc(at, r)
        canvas.disc(at, r - dice.between(4, 8), fill=GROUND)
        if dice.chance(0.6):
            canvas.disc(at, dice.between(4, 7))
        return
    for stroke in dice.pick(_GLYPHS):
        path = [(at[0] + (x - 0.5) * r, at[1] + (y - 1) * r * 0.8) for x, y in stroke]
        canvas.ribbon(path, 6)


def _add_tails(canvas: Canvas, at: Point, *, width: float, start: float, most: int, dice: Dice) -> None:
    for _ in range(dice.whole(0, most)):
        _add_tail(canvas, at, width=width, start=start, heading=dice.whole(0, 7), dice=dice)


def _add_tail(canvas: Canvas, at: Point, *, width: float, start: float, heading: int, dice: Dice) -> None:
    """A trace from a pad: straight, then turned by 45 degrees, then straight again, until something is in the way."""
    path, turn = [at], dice.pick((-1, 1))
    for leg, direction in enumerate((heading, heading + turn, heading)):
        want = dice.between(20, 160)
        step = _advance(canvas, path[-1], width=width, start=start * 1.45 if leg == 0 else 0, turn=direction, want=want)
        if step is None:
            break
        path.append(step)
    if len(path) == 1:
        return
    canvas.ribbon(path, width)
    if dice.chance(0.6):
        canvas.disc(path[-1], width * dice.between(0.6, 1.1))
    else:
        canvas.disc(path[-1], width * 0.5)


def _advance(canvas: Canvas, at: Point, *, width: float, start: float, turn: int, want: float) -> Point | None:
    """How far a trace can go in a direction (in eighths of a turn) and keep its clearance; None if not at all."""
    angle = turn * math.pi / 4
    dx, dy = math.cos(angle), math.sin(angle)
    clear, step = width * 0.5 + 8, width + 8
    gone = start + clear + 2
    reached = None
    while gone < start + want:
        x, y = at[0] + dx * gone, at[1] + dy * gone
        if not canvas.all_is(GROUND, x - clear, y - clear, x + clear, y + clear):
            break
        reached = (x, y)
        gone += step
    return reached
