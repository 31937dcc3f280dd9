"""Images of a past job, read again from its source, and drawn with what was found in them."""

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.config import SourceConfig
from sightline.data.decode import MAX_PIXELS, decode
from sightline.detection.item import Item, Source
from sightline.detection.past import PastJob
from sightline.detection.sources.factory import open_source
from sightline.detection.sources.listing import ListSource
from sightline.errors import ImageError, SightlineError
from sightline.report.drawing import draw_boxes
from sightline.report.thumbnails import THUMBNAIL_PX
from sightline.workspace import Workspace

Row = dict[str, Any]

SIDES = ("xmin", "ymin", "xmax", "ymax")
_CONTENT = re.compile(r"@([0-9a-f]{16})( where .*)?$", re.DOTALL)
"""What stands behind the name of a dataset in that of its source."""
_MOST_SEARCHED = 200_000
"""Items of a source that are gone through to find some again."""


def find_images(workspace: Workspace, job: PastJob, rows: Sequence[Row]) -> dict[str, bytes | SightlineError]:
    """The encoded images of some rows by id, read again from the job's source, or why one cannot be read."""
    content = _CONTENT.search(job.source)
    plain = [row for row in rows if content is None and _is_file(row["uri"])]
    found = _read(ListSource([row["uri"] for row in plain]), plain) if plain else {}
    others = [row for row in rows if row["image_id"] not in found]
    if others:
        try:
            source = _reopen(workspace, job, others, content[1] if content else None)
            found |= _read(source, others, key="image_id")
        except SightlineError as error:
            found |= {row["image_id"]: error for row in others}
    gone = ImageError("not found", f"it is not among the first {_MOST_SEARCHED:,} images of the source", stage="read")
    return {row["image_id"]: found.get(row["image_id"], gone) for row in rows}


def picture_of(row: Row, data: bytes, labels: Mapping[str, int], *, side: int = THUMBNAIL_PX) -> Image.Image:
    """An image of a job with its boxes, fitted into a square of so many pixels.

    Args:
        labels: The number of each class, which decides on its colour.

    Raises:
        ImageError: It cannot be decoded.
    """
    pixels = Image.fromarray(decode(data, max_pixels=MAX_PIXELS))
    scale = min(1.0, side / max(pixels.size))
    size = max(round(pixels.width * scale), 1), max(round(pixels.height * scale), 1)
    small = pixels.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0) if scale < 1 else pixels
    boxes = np.array([[box[edge] for edge in SIDES] for box in row["boxes"]], np.float32).reshape(-1, 4)
    drawn: Image.Image = draw_boxes(
        small,
        boxes * np.float32(scale),
        np.array([labels.get(box["label"], 0) for box in row["boxes"]], np.int32),
        classes=_named(labels),
        scores=np.array([box["score"] for box in row["boxes"]], np.float32),
    )
    return drawn


def _named(labels: Mapping[str, int]) -> list[str]:
    """Names by number; numbers that nothing was found of have none."""
    names = [""] * (max(labels.values(), default=-1) + 1)
    for name, number in labels.items():
        names[number] = name
    return names


def _is_file(uri: str) -> bool:
    """Whether a URI is a path or an object in a bucket, not a member of something."""
    return "!/" not in uri and (uri.startswith("/") or re.match(r"[a-z0-9]+://", uri) is not None)


def _reopen(workspace: Workspace, job: PastJob, rows: Sequence[Row], content: str | None) -> Source:
    """The source by its public name; of a dataset, which has its content behind its name, only some rows."""
    name = _CONTENT.sub("", job.source)
    listed = ", ".join("'" + row["image_id"].replace("'", "''") + "'" for row in rows)
    settings = SourceConfig(where=f"image_id in ({listed})" if content else None)
    source = open_source(name if "://" in name else Path(name), settings, workspace)[0]
    if content and f"@{content}" not in source.name:
        raise ImageError("changed", "the dataset is another one by now", stage="read")
    return source


def _read(source: Source, rows: Sequence[Row], *, key: str = "uri") -> dict[str, bytes | SightlineError]:
    """Images of some rows, by id; `key` is what rows and items are known by."""
    wanted = {row[key]: row for row in rows}
    items = (item for item in islice(source.items(), _MOST_SEARCHED) if getattr(item, key) in wanted)
    return {
        row["image_id"]: _read_one(source, item, row)
        for item in islice(items, len(wanted))
        for row in (wanted[getattr(item, key)],)
    }


def _read_one(source: Source, item: Item, row: Row) -> bytes | SightlineError:
    if item.version and row.get("version") and item.version != row["version"]:
        return ImageError("changed", "the image is another one by now", stage="read")
    try:
        return source.read(item)
    except SightlineError as error:
        return error
