"""Layouts of the four numbers of a box in a table: which one a table uses, and conversion to xyxy."""

import math
from collections.abc import Iterable
from typing import Any, get_args

from sightline.config import BoxFormat
from sightline.errors import FormatError

XYXY = list[float]
Size = tuple[int, int]

FORMATS: tuple[BoxFormat, ...] = get_args(BoxFormat)
_SLACK_PX = 1.0
"""Rounding may put an edge this far outside of the image."""
NAMED_SIDES: dict[BoxFormat, tuple[tuple[str, ...], ...]] = {
    "xyxy": (
        ("xmin", "x_min", "x1", "left"),
        ("ymin", "y_min", "y1", "top"),
        ("xmax", "x_max", "x2", "right"),
        ("ymax", "y_max", "y2", "bottom"),
    ),
    "xywh": (("x", "left"), ("y", "top"), ("w", "width"), ("h", "height")),
    "cxcywh": (("cx", "x_center"), ("cy", "y_center"), ("w", "width"), ("h", "height")),
}


def number(value: Any) -> float:
    """A cell as a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def is_unnamed(box: Any) -> bool:
    """Whether a box is four numbers without names, which do not say what they mean."""
    return isinstance(box, list | tuple) and len(box) == 4 and not any(map(_is_nested, box))


def box_to_xyxy(box: Any, box_format: BoxFormat) -> XYXY:
    """A box as corners; NaN where it is not a box. The names of a box with names decide, whatever the format is."""
    if isinstance(box, dict):
        lower = {str(key).lower(): value for key, value in box.items()}
        for named_format, sides in NAMED_SIDES.items():
            names = [next((name for name in side if name in lower), None) for side in sides]
            if None not in names:
                return _corners([number(lower[name]) for name in names if name], named_format)
    if not is_unnamed(box):
        return [math.nan] * 4
    return _corners([number(value) for value in box], box_format)


def decide_format(boxes: Iterable[tuple[Any, Size | None]], column: str) -> BoxFormat | None:
    """The only layout in which every box has its corners in order and lies in its image.

    Args:
        boxes: Boxes as the table has them, and the sizes of their images where these are known.
        column: The column that holds them, for the message.

    Returns:
        None if no box needs a layout.

    Raises:
        FormatError: The boxes do not determine the layout.
    """
    possible, seen, example = set(FORMATS), 0, None
    for box, size in boxes:
        if is_unnamed(box) and all(math.isfinite(number(value)) for value in box):
            seen += 1
            example = example or list(box)
            possible = {name for name in possible if _fits(box_to_xyxy(box, name), size)}
            if not possible:
                break
    if not seen:
        return None
    if len(possible) == 1:
        return possible.pop()
    could_be = " or ".join(name for name in FORMATS if name in possible) or "none of them for every box"
    raise FormatError(
        f"column {column!r} holds boxes such as {example}, and the data do not determine what the four numbers are "
        f"(possible: {could_be}): pass --box-format xyxy (xmin, ymin, xmax, ymax), xywh (left, top, width, height; "
        "usual in COCO and Hugging Face) or cxcywh (center, width, height)"
    )


def _is_nested(value: Any) -> bool:
    """Whether a value is a box itself, or the text of one."""
    is_text = isinstance(value, str) and value.lstrip().startswith(("[", "{"))
    return is_text or isinstance(value, list | tuple | dict)


def _corners(values: list[float], box_format: BoxFormat) -> XYXY:
    x, y, a, b = values
    match box_format:
        case "xyxy":
            return values
        case "xywh":
            return [x, y, x + a, y + b]
        case "cxcywh":
            return [x - a / 2, y - b / 2, x + a / 2, y + b / 2]


def _fits(box: XYXY, size: Size | None) -> bool:
    x0, y0, x1, y1 = box
    width, height = size or (math.inf, math.inf)
    in_order = x0 <= x1 and y0 <= y1
    return in_order and min(x0, y0) >= -_SLACK_PX and x1 <= width + _SLACK_PX and y1 <= height + _SLACK_PX
