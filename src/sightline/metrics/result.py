"""What an evaluation of a detector says, as values."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from sightline.metrics.confusion import Confusion
from sightline.metrics.rates import Rates


@dataclass(frozen=True, slots=True)
class ClassResult:
    """The figures of one class; NaN where it has no true boxes.

    Attributes:
        name: Name of the class.
        ap: Average precision, the mean over the IoU thresholds.
        ap50: Average precision at IoU 0.5.
        ap_small: Of objects up to 32 x 32 pixels, like `ap`.
        ap_medium: Of objects from 32 x 32 to 96 x 96 pixels.
        ap_large: Of objects from 96 x 96 pixels.
        num_true: True boxes that are not ignored.
        rates: Precision, recall and F1 at the operating point.
    """

    name: str
    ap: float
    ap50: float
    ap_small: float
    ap_medium: float
    ap_large: float
    num_true: int
    rates: Rates


@dataclass(frozen=True, slots=True, eq=False)
class DetectionResult:
    """The figures of a detector, from 0 to 1; NaN where there was nothing to find.

    Attributes:
        iou_thresholds: What `map`, its parts by size and the `ar`s are means over.
        map: Mean average precision.
        map50: At IoU 0.5, whatever the thresholds.
        map75: At IoU 0.75, whatever the thresholds.
        map_small: Of objects up to 32 x 32 pixels.
        map_medium: Of objects from 32 x 32 to 96 x 96 pixels.
        map_large: Of objects from 96 x 96 pixels.
        ar1: Average recall of the best found box of each image and class.
        ar10: Of the best 10.
        ar100: Of the best 100.
        ar_small: Of the best 100, by size as above.
        ar_medium: See `ar_small`.
        ar_large: See `ar_small`.
        iou: Overlap from which a found box is right, at the operating point and in the confusion matrix.
        score: The operating point: boxes with at least this score are kept. NaN if nothing was found.
        rates: Precision, recall and F1 at the operating point, all classes added up.
        per_class: One for each class, in the order of the classes.
        confusion: True classes x found classes, background last, at the operating point.
        num_images: Images seen.
    """

    iou_thresholds: tuple[float, ...]
    map: float
    map50: float
    map75: float
    map_small: float
    map_medium: float
    map_large: float
    ar1: float
    ar10: float
    ar100: float
    ar_small: float
    ar_medium: float
    ar_large: float
    iou: float
    score: float
    rates: Rates
    per_class: tuple[ClassResult, ...]
    confusion: Confusion
    num_images: int

    def to_json(self) -> str:
        """The same as JSON; NaN becomes null."""
        return to_json(self)


def to_json(result: Any) -> str:
    """A dataclass of numbers, names and arrays as JSON; NaN, which JSON lacks, becomes null."""
    return json.dumps(_plain(asdict(result)), allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if math.isnan(value):
            return None
        case str() | int() | float():
            return value
        case _:
            return value.tolist()
