"""Small pictures for pages: an image with its boxes, or a close-up of one box, as data URIs."""

import base64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.data.dataset import Dataset
from sightline.data.decode import decode, encode_jpeg
from sightline.errors import ImageError
from sightline.report.drawing import draw_boxes
from sightline.report.finding import Example
from sightline.structures import Boxes, Sample

THUMBNAIL_PX = 360
CLOSE_UP_PX = 220
_CONTEXT = 3.0
_MIN_WINDOW_PX = 40
_MAX_BYTES = 50_000
_QUALITIES = (80, 55, 30)

Window = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A picture, or the reason why there is none.

    Attributes:
        uri: "data:image/jpeg;base64,…", or empty.
        label: The class of the whole image, for classification.
        trouble: Why the image cannot be shown; ingest does not decode when told `verify=header`.
    """

    sample: Sample
    label: str = ""
    uri: str = ""
    width: int = THUMBNAIL_PX
    height: int = THUMBNAIL_PX
    trouble: str = ""


def thumbnail(dataset: Dataset, position: int) -> Thumbnail:
    """A whole image with all its boxes."""
    sample = dataset[position]
    annotation = sample.annotation
    window = (0, 0, sample.width, sample.height)
    return _picture(dataset, sample, window, THUMBNAIL_PX, annotation.boxes, annotation.labels)


def close_up(dataset: Dataset, example: Example) -> Thumbnail:
    """The place that an example is about: one box and what is around it, or the whole image."""
    sample = dataset[example.position]
    if example.box is None:
        return thumbnail(dataset, example.position)
    boxes, labels = np.array([example.box], np.float32), np.array([example.label], np.int32)
    return _picture(dataset, sample, _window(example.box, sample), CLOSE_UP_PX, boxes, labels)


def _picture(
    dataset: Dataset, sample: Sample, window: Window, size: int, boxes: Boxes, labels: NDArray[np.int32]
) -> Thumbnail:
    label = "" if sample.annotation.label is None else dataset.classes[sample.annotation.label]
    try:
        pixels = decode(sample.image)
    except ImageError as error:
        return Thumbnail(sample, label, trouble=str(error))
    x0, y0, x1, y1 = window
    scale = size / max(x1 - x0, y1 - y0)
    # Never zero pixels, for an image may be thousands of times longer than it is high.
    shape = max(round((x1 - x0) * scale), 1), max(round((y1 - y0) * scale), 1)
    small = Image.fromarray(pixels).resize(shape, Image.Resampling.BICUBIC, box=window, reducing_gap=2.0)
    drawn = draw_boxes(small, _moved(boxes, window, scale), labels, classes=dataset.classes)
    return Thumbnail(sample, label, data_uri(drawn), *shape)


def _moved(boxes: Boxes, window: Window, scale: float) -> Boxes:
    """Boxes in pixels of a window that was scaled."""
    corner = np.array([window[0], window[1], window[0], window[1]], np.float32)
    return (boxes - corner) * np.float32(scale)


def _window(box: tuple[float, float, float, float], sample: Sample) -> Window:
    """A square around a box with some of its surroundings, cut off at the image's edges."""
    x0, y0, x1, y1 = box
    half = max(_CONTEXT * min(max(x1 - x0, y1 - y0), 100), 1.1 * max(x1 - x0, y1 - y0), _MIN_WINDOW_PX) / 2
    middle_x, middle_y = (x0 + x1) / 2, (y0 + y1) / 2
    return (
        max(int(middle_x - half), 0),
        max(int(middle_y - half), 0),
        min(int(middle_x + half) + 1, sample.width),
        min(int(middle_y + half) + 1, sample.height),
    )


def data_uri(image: Image.Image) -> str:
    """JPEG; noisy images are packed harder, so that no page becomes too heavy to send."""
    data = b""
    for quality in _QUALITIES:
        data = encode_jpeg(np.asarray(image), quality=quality)
        if len(data) <= _MAX_BYTES:
            break
    return "data:image/jpeg;base64," + base64.b64encode(data).decode("ascii")
