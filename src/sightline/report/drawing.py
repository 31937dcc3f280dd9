"""Boxes drawn on images; the app, reports and saved images all look the same because they use this.

Lines and letters grow with the image, so that a name can be read on a thumbnail and on a scan of 10,000 pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from sightline.report.colors import Rgb, color_of, text_color_on
from sightline.report.fonts import Font, font_for
from sightline.report.name import one_line
from sightline.structures import Boxes

_LINE_SHARE = 0.0035
_TEXT_SHARE = 0.026
_MIN_LINE_PX = 2
_MIN_TEXT_PX = 11
_MAX_NAME = 28
_MAX_WIDTH_SHARE = 0.9

Rect = tuple[int, int, int, int]
"""x0, y0, x1, y1 in whole pixels, the far edges excluded."""


def draw_boxes(
    image: Image.Image | NDArray[np.uint8],
    boxes: Boxes,
    labels: NDArray[np.int32],
    *,
    classes: Sequence[str],
    scores: NDArray[np.float32] | None = None,
    names: bool = True,
) -> Image.Image:
    """Draw boxes with their class names; the given image is left as it is.

    Args:
        image: A PIL image, or H x W x 3 uint8 RGB.
        boxes: N x 4, xyxy in pixels of this image.
        labels: N, indices into `classes`.
        scores: N, 0 to 1, written behind the names.
        names: Whether to write names at all.

    Returns:
        A new RGB image of the same size.

    >>> image = np.zeros((100, 100, 3), np.uint8)
    >>> draw_boxes(image, np.array([[10, 20, 60, 90]], np.float32), np.array([0]), classes=["cat"]).size
    (100, 100)
    """
    canvas = image.convert("RGB") if isinstance(image, Image.Image) else Image.fromarray(image)
    canvas = canvas.copy() if canvas is image else canvas
    style = _Style.of(canvas)
    draw = ImageDraw.Draw(canvas)
    rects = [_whole_pixels(box, canvas) for box in boxes.tolist()]
    # Large ones first, so that small ones are not painted over.
    order = sorted(range(len(rects)), key=lambda i: -_area(rects[i]))
    for i in order:
        _draw_outline(draw, rects[i], color_of(int(labels[i])), style.line)
    placed: list[Rect] = []
    for i in order if names else ():
        label = int(labels[i])
        text = _text(classes[label], None if scores is None else float(scores[i]))
        placed.append(_draw_label(draw, text, rects[i], placed, color=color_of(label), style=style))
    return canvas


@dataclass(frozen=True, slots=True)
class _Style:
    """Sizes in pixels for one image."""

    line: int
    text: int
    image: tuple[int, int]

    @classmethod
    def of(cls, image: Image.Image) -> "_Style":
        side = (image.width * image.height) ** 0.5
        line, text = max(_MIN_LINE_PX, round(side * _LINE_SHARE)), max(_MIN_TEXT_PX, round(side * _TEXT_SHARE))
        return cls(line, text, image.size)

    @property
    def padding(self) -> int:
        return max(2, self.text // 5)


def _whole_pixels(box: Sequence[float], image: Image.Image) -> Rect:
    """The pixels a box covers: at least one, inside the image."""
    x0, y0, x1, y1 = (round(value) for value in box)
    x0, y0 = min(max(x0, 0), image.width - 1), min(max(y0, 0), image.height - 1)
    return x0, y0, min(max(x1, x0 + 1), image.width), min(max(y1, y0 + 1), image.height)


def _area(rect: Rect) -> int:
    return (rect[2] - rect[0]) * (rect[3] - rect[1])


def _draw_outline(draw: ImageDraw.ImageDraw, rect: Rect, color: Rgb, line: int) -> None:
    """The line runs inside the box; of a small box it must not hide the object."""
    x0, y0, x1, y1 = rect
    width = max(1, min(line, (x1 - x0) // 4, (y1 - y0) // 4))
    draw.rectangle((x0, y0, x1 - 1, y1 - 1), outline=color, width=width)


def _text(name: str, score: float | None) -> str:
    shown = one_line(name, limit=_MAX_NAME)
    return shown if score is None else f"{shown} {score:.2f}"


def _draw_label(
    draw: ImageDraw.ImageDraw, text: str, rect: Rect, placed: list[Rect], *, color: Rgb, style: _Style
) -> Rect:
    font = font_for(text, style.text)
    text = _fit(text, font, style.image[0] * _MAX_WIDTH_SHARE - 2 * style.padding)
    # One height for all texts, whatever letters they have: labels of a row line up.
    top, bottom = font.getbbox("bfg")[1::2]
    size = round(font.getlength(text)) + 2 * style.padding, round(bottom - top) + style.padding
    place = _place(rect, size, placed, style.image)
    draw.rectangle((place[0], place[1], place[2] - 1, place[3] - 1), fill=color)
    at = place[0] + style.padding, place[1] + style.padding // 2 - top
    draw.text(at, text, fill=text_color_on(color), font=font)
    return place


def _fit(text: str, font: Font, width: float) -> str:
    """Clip the end until the text is no wider than that."""
    if font.getlength(text) <= width:
        return text
    while len(text) > 1 and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _place(rect: Rect, size: tuple[int, int], placed: list[Rect], image: tuple[int, int]) -> Rect:
    """Above the box, below it, or within it: the first that covers no other label, always inside the image."""
    x0, y0, x1, y1 = rect
    width, height = size
    corners = [(x0, y0 - height), (x0, y1), (x1 - width, y0 - height), (x1 - width, y1), (x0, y0), (x0, y1 - height)]
    inside = [_inside(corner, size, image) for corner in corners]
    exact = [place for place, corner in zip(inside, corners, strict=True) if place[1] == corner[1]]
    free = [place for place in exact if not any(_overlap(place, other) for other in placed)]
    return (free or exact or inside)[0]


def _inside(corner: tuple[int, int], size: tuple[int, int], image: tuple[int, int]) -> Rect:
    x0 = max(0, min(corner[0], image[0] - size[0]))
    y0 = max(0, min(corner[1], image[1] - size[1]))
    return x0, y0, x0 + size[0], y0 + size[1]


def _overlap(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
