"""Pictures of what was found, kept beside the rows: `--save-images`."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from sightline.data.decode import decode, encode_jpeg
from sightline.detection.item import Item, Source
from sightline.detection.plan import Chunk
from sightline.errors import ImageError
from sightline.report.drawing import draw_boxes


class Pictures:
    """Draws the first images with detections, up to a number.

    Attributes:
        saved: How many there are.
    """

    def __init__(self, directory: Path, count: int, source: Source, classes: tuple[str, ...], max_pixels: int) -> None:
        self.directory, self._count, self._source = directory, count, source
        self._classes, self._max_pixels = classes, max_pixels
        self.saved = len(list(directory.glob("*.jpg"))) if directory.is_dir() else 0

    def take(self, chunk: Chunk, rows: pa.Table) -> None:
        """A chunk that was just committed."""
        if self.saved >= self._count:
            return
        by_id = {item.image_id: item for item in chunk.items}
        for row in rows.to_pylist():
            if self.saved < self._count and row["num_detections"]:
                self._draw(row, by_id[row["image_id"]])

    def _draw(self, row: dict[str, object], item: Item) -> None:
        boxes = row["boxes"]
        assert isinstance(boxes, list)
        try:
            pixels = decode(self._source.read(item), max_pixels=self._max_pixels)
        except ImageError:
            return  # It has changed since; its row will too.
        picture = draw_boxes(
            pixels,
            np.array([[box[side] for side in ("xmin", "ymin", "xmax", "ymax")] for box in boxes], np.float32),
            np.array([self._classes.index(box["label"]) for box in boxes], np.int32),
            classes=self._classes,
            scores=np.array([box["score"] for box in boxes], np.float32),
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{item.image_id}.jpg").write_bytes(encode_jpeg(np.asarray(picture)))
        self.saved += 1
