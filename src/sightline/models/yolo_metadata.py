"""What Ultralytics' exporter notes in an ONNX file: classes, licence, stride, task."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sightline.data.formats.layout import class_name
from sightline.errors import FormatError

AGPL = "AGPL-3.0"
NAMES = tuple(f"{series}{size}" for series in ("yolov8", "yolo11") for size in "nsmlx")
"""The networks of the package ultralytics that we have."""
_MAX_TEXT = 1 << 20
_MAX_LICENCE = 200
_USUAL_STRIDE = 32


@dataclass(frozen=True)
class YoloMetadata:
    """What a file says of itself; anybody can write it.

    Attributes:
        classes: Names in the order of the outputs; none if it does not say.
        licence: None if it does not say.
        stride: Sides of images are multiples of it.
        size: Side that images were fitted into in training.
        task: Such as "detect".
        end_to_end: Whether suppression is part of the graph.
    """

    classes: tuple[str, ...] = ()
    licence: str | None = None
    stride: int = _USUAL_STRIDE
    size: int | None = None
    task: str = "detect"
    end_to_end: bool = False


def read_metadata(model: Any) -> YoloMetadata:
    """What is noted in a ModelProto."""
    noted = {entry.key: entry.value for entry in model.metadata_props if len(entry.value) <= _MAX_TEXT}
    stride = _literal(noted.get("stride"))
    names = _literal(noted.get("names"))
    return YoloMetadata(
        classes=numbered_names(names) if isinstance(names, dict | list) else (),
        licence=_licence(noted),
        stride=stride if _is_side(stride) else _USUAL_STRIDE,
        size=longest_side(_literal(noted.get("imgsz"))),
        task=noted.get("task", "detect")[:40],
        end_to_end=noted.get("end2end") == "True",
    )


def numbered_names(names: Mapping[Any, Any] | list[Any]) -> tuple[str, ...]:
    """Class names as a list, or by their numbers, which must run from 0 without gaps.

    >>> numbered_names({1: "dog", 0: "cat"})
    ('cat', 'dog')
    """
    pairs = dict(enumerate(names)) if isinstance(names, list) else names
    try:
        found = {int(number): class_name(name) for number, name in pairs.items()}
    except (TypeError, ValueError, OverflowError):
        raise FormatError(f"class names must be numbered from 0, not {str(list(pairs))[:80]}") from None
    ordered = [found.get(number) for number in range(len(pairs))]
    known = tuple(name for name in ordered if name is not None)
    if not known or len(known) != len(ordered):
        raise FormatError(f"class names must be numbered from 0 without gaps, each a text, not {str(pairs)[:80]}")
    return known


def longest_side(size: Any) -> int | None:
    """The side of the square in which an `imgsz` of Ultralytics lies: a number, or height and width.

    >>> longest_side(320), longest_side([480, 640]), longest_side("large")
    (320, 640, None)
    """
    sides = [side for side in (size if isinstance(size, list | tuple) else [size]) if _is_side(side)]
    return max(sides) if sides else None


def _licence(noted: Mapping[str, str]) -> str | None:
    text = " ".join(noted.get("license", "").split())
    if text.startswith(AGPL) or (not text and noted.get("author") == "Ultralytics"):
        return AGPL
    return text[:_MAX_LICENCE] or None


def _literal(text: str | None) -> Any:
    """The value that a text spells in Python's way; None if it spells none. Nothing is evaluated."""
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 16384
