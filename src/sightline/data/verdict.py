"""A verdict on every box: kept, repaired or rejected; the good boxes of an image always stay."""

import math

import numpy as np
from numpy.typing import NDArray

from sightline.data.decode import ImageHeader
from sightline.data.record import Loaded, RawBox, Reject
from sightline.structures import Annotation

EDGE_TOLERANCE_PX = 1.0
"""Boxes may pass the edge by this much without a word: VOC counts from 1, and tools round."""

Quad = tuple[float, float, float, float]


def judge_boxes(name: str, loaded: Loaded, header: ImageHeader) -> tuple[Annotation, list[Reject]]:
    """Turn raw boxes into an annotation of the upright image, with a reject for each box that was changed or left."""
    kept: list[tuple[RawBox, Quad]] = []
    rejects = list(loaded.rejects)
    rejects += _check_declared_size(name, loaded, header)
    for raw in loaded.boxes:
        quad = _upright(_in_pixels(raw, loaded, header), loaded, header)
        box, reason = _judge(quad, header.width, header.height)
        if reason:
            action = "box repaired" if box else "box rejected"
            numbers = " ".join(f"{value:g}" for value in (raw.x0, raw.y0, raw.x1, raw.y1))
            detail = f"{raw.where}: {numbers} in an image of {header.width} x {header.height}"
            rejects.append(Reject(name, "box", reason, detail, action))
        if box:
            kept.append((raw, box))
    return _annotation(kept, loaded.label), rejects


def _annotation(kept: list[tuple[RawBox, Quad]], label: int | None) -> Annotation:
    return Annotation(
        boxes=np.array([box for _, box in kept], np.float32).reshape(-1, 4),
        labels=np.array([raw.label for raw, _ in kept], np.int32),
        ignore=np.array([raw.ignore for raw, _ in kept], np.bool_),
        label=label,
        areas=_areas(kept),
    )


def _areas(kept: list[tuple[RawBox, Quad]]) -> NDArray[np.float64] | None:
    """The source's areas, those of the boxes filling the gaps; None where the source gives none."""
    if all(raw.area is None for raw, _ in kept):
        return None
    return np.array([(x1 - x0) * (y1 - y0) if raw.area is None else raw.area for raw, (x0, y0, x1, y1) in kept])


def _judge(box: Quad, width: int, height: int) -> tuple[Quad | None, str]:
    """The box to keep, if any, and what was wrong, if anything."""
    x0, y0, x1, y1 = box
    if not all(map(math.isfinite, box)):
        return None, "box is not finite"
    reason = ""
    if x0 > x1 or y0 > y1:
        x0, x1, y0, y1, reason = min(x0, x1), max(x0, x1), min(y0, y1), max(y0, y1), "corners swapped"
    if x0 == x1 or y0 == y1:
        return None, "box without area"
    if x0 >= width or y0 >= height or x1 <= 0 or y1 <= 0:
        return None, "box outside the image"
    beyond = max(-x0, -y0, x1 - width, y1 - height)
    if beyond > 0:
        x0, y0, x1, y1 = max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))
    if beyond > EDGE_TOLERANCE_PX:
        reason = reason or "box clipped to the image"
    if not (np.float32(x0) < np.float32(x1) and np.float32(y0) < np.float32(y1)):
        return None, "box without area"
    return (x0, y0, x1, y1), reason


def _in_pixels(raw: RawBox, loaded: Loaded, header: ImageHeader) -> Quad:
    if not loaded.normalised:
        return raw.x0, raw.y0, raw.x1, raw.y1
    return raw.x0 * header.width, raw.y0 * header.height, raw.x1 * header.width, raw.y1 * header.height


def _upright(box: Quad, loaded: Loaded, header: ImageHeader) -> Quad:
    """Turn boxes with the image when they were drawn on the pixels as stored, which the declared size tells."""
    width, height = header.stored_size
    if width == height or loaded.declared_size != (width, height):
        return box
    x0, y0, x1, y1 = box
    match header.orientation:
        case 5:
            return y0, x0, y1, x1
        case 6:
            return height - y1, x0, height - y0, x1
        case 7:
            return height - y1, width - x1, height - y0, width - x0
        case 8:
            return y0, width - x1, y1, width - x0
        case _:
            return box


def _check_declared_size(name: str, loaded: Loaded, header: ImageHeader) -> list[Reject]:
    if loaded.declared_size in (None, (header.width, header.height), header.stored_size):
        return []
    assert loaded.declared_size is not None
    width, height = loaded.declared_size
    detail = f"declared {width} x {height}, is {header.width} x {header.height}; boxes kept as written"
    return [Reject(name, "annotation", "declared size is wrong", detail, "noted")]
