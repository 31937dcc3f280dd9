"""Binarised images of bare printed circuit boards with six kinds of defects, in the manner of DeepPCB.

Black copper on white. The template of a board (without defects) and the defects are drawn from two independent
streams of random numbers, so that both are pure functions of the seed, the index and the size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sightline.data.synth import sizes
from sightline.data.synth.canvas import Canvas
from sightline.data.synth.defects import Bench
from sightline.data.synth.dice import Dice
from sightline.data.synth.layout import draw_layout
from sightline.data.synth.rendered import Rendered
from sightline.data.synth.scan import Box, Mask, Scan

CLASSES = ("open", "short", "mousebite", "spur", "copper", "pin-hole")


def render_board(*, seed: int, index: int, size: int = 640) -> Rendered:
    """Render one board with its defects.

    Args:
        seed: Chooses the dataset.
        index: Chooses the board within it.
        size: Width and height in pixels. The scale of the structures stays: a smaller board is a smaller cut-out,
            with as many defects.

    Returns:
        A gray image of 0 (copper) and 255, and the box of every defect: the extent of the pixels it changed plus
        the margin that DeepPCB's annotators left, cut at the image's border.

    Example:
        >>> board = render_board(seed=0, index=7)
        >>> board.image.shape, board.boxes.shape[1]
        ((640, 640), 4)
    """
    dice = Dice(seed=seed, index=index, stream=1)
    bench = Bench(_scan_board(seed=seed, index=index, size=size), dice=dice)
    labels, boxes = [], []
    for defect in sizes.draw_classes(dice=dice):
        extent = bench.add(defect)
        if extent is not None:
            labels.append(defect)
            boxes.append(_loosen(extent, size=size, dice=dice))
    return Rendered(
        image=_to_gray(bench.board),
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int32),
    )


def render_template(*, seed: int, index: int, size: int = 640) -> npt.NDArray[np.uint8]:
    """Render the same board without its defects, as a gray image of ``size x size``.

    Example:
        >>> board, template = render_board(seed=0, index=7), render_template(seed=0, index=7)
        >>> bool((board.image != template).any())
        True
    """
    return _to_gray(_scan_board(seed=seed, index=index, size=size).develop())


def _scan_board(*, seed: int, index: int, size: int) -> Scan:
    dice = Dice(seed=seed, index=index, stream=0)
    canvas = Canvas(size, dice=dice)
    draw_layout(canvas, dice=dice)
    return Scan(canvas.copper(), dice=dice)


def _loosen(extent: Box, *, size: int, dice: Dice) -> Box:
    """Add the annotators' margin, which is off by a pixel now and then."""
    slip = dice.pick((-1, 1)) if dice.chance(0.05) else 0
    before, after = sizes.MARGIN_BEFORE + slip, sizes.MARGIN_AFTER + slip
    x0, y0, x1, y1 = extent
    return (max(0, x0 - before), max(0, y0 - before), min(size, x1 + after), min(size, y1 + after))


def _to_gray(copper: Mask) -> npt.NDArray[np.uint8]:
    # 1 - 1 = 0 is copper, 0 - 1 wraps to 255: twenty times as fast as np.where on a whole board.
    return copper.view(np.uint8) - np.uint8(1)
