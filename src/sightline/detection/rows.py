"""The rows of a chunk, filled in as images are done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sightline.detection.item import Item
from sightline.detection.schema import BOX, IMAGES, OK, REJECTED
from sightline.errors import ImageError
from sightline.structures import Detections

_MOST_DETAIL = 500
_BOX_NAMES = [field.name for field in BOX]


@dataclass(frozen=True, slots=True)
class ModelName:
    """How rows name the model that made them."""

    model: str
    version: str


class Rows:
    """One row for each image of a chunk, whatever becomes of it."""

    def __init__(self, items: Sequence[Item], chunk: str, model: ModelName) -> None:
        self._items, self._chunk, self._model = items, chunk, model
        self._rows: list[dict[str, Any] | None] = [None] * len(items)

    def detected(self, place: int, result: Detections, *, width: int, height: int) -> None:
        """The detections in an image."""
        boxes = [dict(zip(_BOX_NAMES, row, strict=True)) for row in result.rows()]
        self._set(place, status=OK, width=width, height=height, num_detections=len(boxes), boxes=boxes)

    def rejected(self, place: int, error: ImageError) -> None:
        """An image that cannot be used."""
        detail = plain_text(error.detail)[:_MOST_DETAIL]
        self._set(
            place, status=REJECTED, stage=error.stage, reason=error.reason, detail=detail, num_detections=0, boxes=[]
        )

    def table(self) -> pa.Table:
        """All rows, in the order of the items."""
        assert None not in self._rows, "every image has its row"
        return pa.Table.from_pylist(self._rows, schema=IMAGES)

    def _set(self, place: int, **values: Any) -> None:
        assert self._rows[place] is None, "an image has one row"
        item = self._items[place]
        self._rows[place] = {
            "image_id": item.image_id,
            "uri": item.uri,
            "version": item.version,
            "chunk": self._chunk,
            "model": self._model.model,
            "model_version": self._model.version,
            **values,
        }


def plain_text(text: str) -> str:
    """A text that every table can hold: valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def rejected_rows(items: Sequence[Item], chunk: str, model: ModelName, error: ImageError) -> pa.Table:
    """Rows of images that are all rejected for one reason."""
    rows = Rows(items, chunk, model)
    for place in range(len(items)):
        rows.rejected(place, error)
    return rows.table()
