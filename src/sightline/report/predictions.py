"""Truth and findings side by side, so that one look says what a model gets right."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from sightline.report.drawing import draw_boxes
from sightline.report.fonts import font_for
from sightline.report.name import one_line
from sightline.structures import Annotation, Detections

_SIDE = 480
_GAP = 8
_TEXT_PX = 16
_BAR = 28
_PAPER, _INK = (255, 255, 255), (31, 41, 55)


def draw_prediction(
    image: NDArray[np.uint8], truth: Annotation, found: Detections, *, classes: Sequence[str]
) -> Image.Image:
    """The image twice: left what is in it, right what was found."""
    height, width = image.shape[:2]
    scale = _SIDE / max(height, width)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    small = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    if truth.label is not None:
        best = f"{classes[int(found.labels[0])]} {float(found.scores[0]):.2f}" if len(found.labels) else "nothing"
        return _side_by_side(small, small, f"truth: {classes[truth.label]}", f"found: {best}")
    factor = np.float32(scale)
    left = draw_boxes(small, truth.boxes * factor, truth.labels, classes=classes)
    right = draw_boxes(small, found.boxes * factor, found.labels, classes=classes, scores=found.scores)
    return _side_by_side(left, right, f"truth: {len(truth)} boxes", f"found: {len(found.labels)} boxes")


def _side_by_side(left: Image.Image, right: Image.Image, *captions: str) -> Image.Image:
    sheet = Image.new("RGB", (left.width + _GAP + right.width, left.height + _BAR), _PAPER)
    sheet.paste(left, (0, _BAR))
    sheet.paste(right, (left.width + _GAP, _BAR))
    draw = ImageDraw.Draw(sheet)
    for x, caption in zip((2, left.width + _GAP + 2), captions, strict=True):
        text = one_line(caption, limit=48)
        draw.text((x, 4), text, fill=_INK, font=font_for(text, _TEXT_PX))
    return sheet
