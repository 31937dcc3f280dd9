"""Two models on the same images: where they disagree, and a list of such images for people to label."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.detection.item import Item, Source
from sightline.errors import ConfigError, ImageError
from sightline.metrics.overlap import Extent, Grouped, overlapping
from sightline.models.predictor import Predictor
from sightline.models.preprocessor import PreparedImage
from sightline.structures import Boxes, Detections

_MOST_AT_ONCE = 8
"""Images that are held at once, each as the two networks take it."""

Pair = tuple[int, int]
"""A box of the first model and one of the second, as indices."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What two models say of one image; every box of either is in exactly one of the last four.

    Attributes:
        uri: Where people find it, without credentials.
        width: Of the upright image, in whose pixels boxes are given.
        height: Likewise.
        first: What the first model found; of a classifier, one box around the image.
        second: Likewise.
        matched: Pairs of boxes that overlap and have the same name.
        other_class: Pairs of boxes that overlap and have different names.
        only_first: Boxes of the first model that no box of the second belongs to.
        only_second: Likewise.
    """

    image_id: str
    uri: str
    width: int
    height: int
    first: Detections
    second: Detections
    matched: tuple[Pair, ...]
    other_class: tuple[Pair, ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]

    @property
    def weight(self) -> float:
        """How much they disagree: the scores of boxes that only one has, and half of both where names differ."""
        first, second = self.first.scores.tolist(), self.second.scores.tolist()
        alone = [first[i] for i in self.only_first] + [second[j] for j in self.only_second]
        # The exact sum does not depend on which model is the first.
        return math.fsum(alone + [(first[i] + second[j]) / 2 for i, j in self.other_class])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on some images.

    Attributes:
        images: How many both have looked at.
        skipped: How many before the last of them could not be read.
        found: All that were looked at, those first on which the models disagree most.
        classes: Names that either model knows: those of the first in its order, then what the second adds.
    """

    images: int
    skipped: int
    found: tuple[Disagreement, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Ready:
    """An image as both networks take it."""

    item: Item
    first: PreparedImage
    second: PreparedImage


def find_disagreements(
    first: Predictor,
    second: Predictor,
    source: Source,
    *,
    limit: int,
    threshold: float | None,
    iou: float = 0.5,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> Comparison:
    """Ask two models about the first images of a source that can be read.

    Args:
        limit: How many images, at most.
        threshold: Lowest score of a detection; None: each model's own.
        iou: From which overlap on two boxes are about the same thing.
        on_progress: Told how many images are done and how many there will be at most; at the end, how many there were.
    """
    if limit < 1:
        raise ConfigError(f"limit is {limit}; expected at least 1 image")
    _check_iou(iou)
    lowest = first.resolve_threshold(threshold), second.resolve_threshold(threshold)
    at_once = min(_MOST_AT_ONCE, first.batch, second.batch)
    items, found, skipped = source.items(), list[Disagreement](), 0
    while len(found) < limit:
        batch, unreadable = _next_batch(first, second, source, items, min(at_once, limit - len(found)))
        skipped += unreadable
        if not batch:
            break
        ones = first.detect([ready.first for ready in batch], lowest[0])
        others = second.detect([ready.second for ready in batch], lowest[1])
        for ready, one, other in zip(batch, ones, others, strict=True):
            size = ready.first.width, ready.first.height
            found.append(compare_boxes(ready.item, size, one, other, iou=iou))
        if on_progress:
            on_progress(len(found), limit)
    if on_progress and len(found) < limit:
        on_progress(len(found), len(found))
    found.sort(key=lambda one: (-one.weight, one.uri, one.image_id))
    return Comparison(len(found), skipped, tuple(found), tuple(dict.fromkeys((*first.classes, *second.classes))))


def compare_boxes(
    item: Item, size: tuple[int, int], first: Detections, second: Detections, *, iou: float = 0.5
) -> Disagreement:
    """Find the boxes of two models that belong together.

    Pairs with the same name come first, then those with different names; among each the largest overlap first, of
    equals that of the surest boxes. A box is in one pair at most. Names are compared, for two models may number their
    classes differently.

    Args:
        size: Width and height of the image.
        iou: From which overlap on two boxes are about the same thing.
    """
    _check_iou(iou)
    # Of two pairs that share a box, the order of both models' boxes prefers the same one: either may be the first.
    pairs = sorted(
        _overlaps(first.boxes, second.boxes, iou), key=lambda pair: first.names[pair[0]] != second.names[pair[1]]
    )
    free_first, free_second = dict.fromkeys(range(len(first))), dict.fromkeys(range(len(second)))
    matched, other_class = list[Pair](), list[Pair]()
    for i, j in pairs:
        if i in free_first and j in free_second:
            del free_first[i], free_second[j]
            (matched if first.names[i] == second.names[j] else other_class).append((i, j))
    return Disagreement(
        item.image_id,
        item.uri,
        *size,
        first,
        second,
        matched=tuple(sorted(matched)),
        other_class=tuple(sorted(other_class)),
        only_first=tuple(free_first),
        only_second=tuple(free_second),
    )


def relabelling_list(picks: Sequence[Disagreement], classes: Sequence[str]) -> dict[str, Any]:
    """Images for people to label, with what the models say, as COCO.

    Of two boxes that belong together there is the surer one; all others are there. Each says with `score` how sure its
    model is, and with `source` which model it is from: both, first or second.

    Args:
        classes: Names for the categories, such as `Comparison.classes`; one that is there twice counts once.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(classes), 1)}
    images, annotations = [], list[dict[str, Any]]()
    for number, pick in enumerate(picks, 1):
        images.append({"id": number, "file_name": pick.uri, "width": pick.width, "height": pick.height})
        for source, found, place in _chosen(pick):
            name, about = found.names[place], {"id": len(annotations) + 1, "image_id": number}
            if name not in numbers:
                raise ConfigError(f"a model found {name[:200]!r} in {pick.uri!r}, which is not among the classes given")
            box, score = found.boxes[place].tolist(), float(found.scores[place])
            annotations.append({**about, "category_id": numbers[name], **_area(box), "score": score, "source": source})
    return {
        "info": {"description": "Images on which two models were compared by Sightline; boxes are theirs, unchecked"},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }


def _check_iou(iou: float) -> None:
    if not 0 < iou <= 1:
        raise ConfigError(f"iou is {iou}; expected more than 0 and at most 1")


def _next_batch(
    first: Predictor, second: Predictor, source: Source, items: Iterator[Item], count: int
) -> tuple[list[_Ready], int]:
    """The next images that can be read, and how many between them cannot; only their canvases are kept."""
    ready, skipped, alike = list[_Ready](), 0, first.preprocessor == second.preprocessor
    for item in items:
        try:
            data = source.read(item)
            one = first.prepare_encoded(data)
            ready.append(_Ready(item, one, one if alike else second.prepare_encoded(data)))
        except ImageError:
            skipped += 1
        if len(ready) == count:
            break
    return ready, skipped


def _overlaps(first: Boxes, second: Boxes, at_least: float) -> list[Pair]:
    """Pairs of boxes with an IoU of `at_least`, the largest first."""
    one, other = (Grouped(np.zeros(len(boxes), np.int64), Extent.of(boxes)) for boxes in (first, second))
    every = overlapping(one, other, crowd=np.zeros(len(second), np.bool_), at_least=0)
    iou = every.iou.reshape(len(first), len(second)).clip(max=1)
    # Also where a box has no area, which happens at the edges of images.
    iou[(first[:, None] == second).all(axis=2)] = 1
    rows, columns = np.nonzero(iou >= at_least)
    order = np.lexsort((columns, rows, -iou[rows, columns]))
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def _chosen(pick: Disagreement) -> Iterator[tuple[str, Detections, int]]:
    """The boxes to show: whose each is, and where it stands."""
    for i, j in pick.matched:
        surer = pick.first.scores[i] >= pick.second.scores[j]
        yield ("both", pick.first, i) if surer else ("both", pick.second, j)
    for i in sorted([*pick.only_first, *(i for i, _ in pick.other_class)]):
        yield "first", pick.first, i
    for j in sorted([*pick.only_second, *(j for _, j in pick.other_class)]):
        yield "second", pick.second, j


def _area(box: list[float]) -> dict[str, Any]:
    x0, y0, x1, y1 = box
    return {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
