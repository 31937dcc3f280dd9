"""Detections in the form that DeepPCB's own evaluation reads: `00041000.txt` with `x1,y1,x2,y2,confidence,type` lines.

The benchmark's evaluation is that of ICDAR 2015: whole pixels, a confidence without an exponent, no spaces, and a file
for every image, empty where nothing was found. Its description asks for `type` as a name; its annotations have numbers
1 to 6 instead, which can be had too. Precision, recall and F-score are those of all boxes that are handed in, while
mAP wants every box there is: two directories, one for each.
"""

import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.data.formats.deeppcb import CLASSES
from sightline.data.formats.writing import ExportDirectory
from sightline.errors import ConfigError, FormatError
from sightline.structures import Boxes

Purpose = Literal["map", "f"]
TypeForm = Literal["name", "number"]


@dataclass(frozen=True, slots=True)
class DeepPcbOutput:
    """What is to be written.

    Attributes:
        directory: Must not be there yet, or be empty.
        purpose: `map` writes every box that the model reports, `f` those at or above the score threshold.
        types: Whether the last word of a line is the type's name or its number.
    """

    directory: Path
    purpose: Purpose = "map"
    types: TypeForm = "name"


class DeepPcbResults:
    """Writes a file for each image.

    Args:
        output: Where and in which form.
        classes: The class names that labels are indices into, in any order.
        score_threshold: Boxes below it are left out where the purpose is `f`.

    Raises:
        ConfigError: A class is not one of DeepPCB's, or there is no threshold although one is needed.
        ExistsError: There is something in the directory.
    """

    def __init__(self, output: DeepPcbOutput, classes: tuple[str, ...], *, score_threshold: float | None) -> None:
        if unknown := [name for name in classes if name not in CLASSES]:
            raise ConfigError(
                f"class {unknown[0]!r} is not one of DeepPCB's, which are {', '.join(CLASSES)}: "
                "only models of those can be written in its form"
            )
        if output.purpose == "f" and score_threshold is None:
            raise ConfigError("the model has no score threshold of its own: give one with --score-threshold")
        self._directory = ExportDirectory(output.directory)
        self._lowest = score_threshold if output.purpose == "f" and score_threshold is not None else 0.0
        self._types = [name if output.types == "name" else str(CLASSES.index(name) + 1) for name in classes]
        self._written: dict[str, str] = {}

    def add(self, file_name: str, boxes: Boxes, scores: NDArray[np.floating], labels: NDArray[np.integer]) -> None:
        """Write what was found in one image.

        Args:
            file_name: The image's name in the dataset, such as `group00041/00041/00041000_test.jpg`.
            boxes: N x 4, xyxy in pixels.
            scores: N, 0 to 1.
            labels: N, indices into the classes.
        """
        name = result_name(file_name)
        if name in self._written:
            raise FormatError(
                f"{file_name!r} and {self._written[name]!r} would both be written as {name!r}: DeepPCB's form tells "
                "images apart by their base names alone"
            )
        self._written[name] = file_name
        keep = scores >= self._lowest
        whole = np.rint(boxes[keep]).astype(np.int64).clip(min=0).tolist()
        rows = zip(whole, scores[keep].tolist(), labels[keep].tolist(), strict=True)
        lines = (f"{x0},{y0},{x1},{y1},{score:.6f},{self._types[label]}\n" for (x0, y0, x1, y1), score, label in rows)
        self._directory.write(name, "".join(lines).encode())


def result_name(file_name: str) -> str:
    """The name of an image's file: as in the benchmark's lists, which leave `_test` out.

    >>> result_name("group00041/00041/00041000_test.jpg")
    '00041000.txt'
    """
    return posixpath.splitext(posixpath.basename(file_name))[0].removesuffix("_test") + ".txt"
