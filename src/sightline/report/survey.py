"""One pass over a dataset that notes what an inspection needs; images are hashed, never decoded."""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.report.duplicates import Fingerprints
from sightline.report.finding import MAX_EXAMPLES, Example, Finding
from sightline.report.name import one_line
from sightline.report.showcase import Showcase
from sightline.report.suspicion import RULES, BoxTable
from sightline.structures import Annotation, Sample

_BATCH_IMAGES = 1024
_SPLIT_NAMES = ("train", "val", "test")


@dataclass(slots=True)
class Survey:
    """What was seen so far. Grows by some 60 bytes an image and 12 bytes a box.

    Attributes:
        measures: Per batch, M x 3 float32: width, height and share of the image's area of each box.
        num_boxes: Boxes of each image.
        empty: The first images that have no boxes, or no label.
    """

    classes: tuple[str, ...]
    splits: dict[str, int] = field(default_factory=dict)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    showcase: Showcase = field(default_factory=Showcase)
    widths: "array[int]" = field(default_factory=lambda: array("i"))
    heights: "array[int]" = field(default_factory=lambda: array("i"))
    num_boxes: "array[int]" = field(default_factory=lambda: array("i"))
    num_ignored: int = 0
    image_bytes: int = 0
    measures: list[NDArray[np.float32]] = field(default_factory=list)
    empty: list[Example] = field(default_factory=list)
    num_empty: int = 0
    suspicious: dict[str, tuple[int, list[Example]]] = field(default_factory=dict)
    _batch: list[Sample] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.widths)

    def add(self, sample: Sample) -> None:
        """Note one image."""
        position, split = len(self), self.splits.setdefault(sample.split, len(self.splits))
        digest = hashlib.sha256(sample.image).digest()
        labels = _labels(sample.annotation)
        self.fingerprints.add(digest, _annotation_hash(sample.annotation), split)
        self.showcase.add(position, digest, split=split, labels=labels)
        self.widths.append(sample.width)
        self.heights.append(sample.height)
        self.num_boxes.append(len(sample.annotation))
        self.image_bytes += len(sample.image)
        self.num_ignored += int(sample.annotation.ignore.sum())
        if not labels:
            self._add_empty(sample, position)
        self._batch.append(_without_image(sample))
        if len(self._batch) == _BATCH_IMAGES:
            self.flush()

    def flush(self) -> None:
        """Judge the boxes that wait."""
        table = _table(self._batch, first=len(self) - len(self._batch))
        self.measures.append(np.column_stack([table.sides, table.area_share]))
        for rule in RULES:
            self._note(rule.kind, rule.find(table), table)
        self._batch.clear()

    def box_measures(self) -> NDArray[np.float32]:
        """M x 3 of all boxes that are not to be ignored: width, height, share of the image's area."""
        return np.concatenate([np.zeros((0, 3), np.float32), *self.measures])

    def findings(self) -> list[Finding]:
        """The suspicious boxes, by rule."""
        found = []
        for rule in RULES:
            count, examples = self.suspicious.get(rule.kind, (0, []))
            if count:
                found.append(
                    Finding(
                        kind=rule.kind,
                        severity=rule.severity,
                        count=count,
                        unit="boxes",
                        advice=rule.advice,
                        examples=tuple(examples),
                    )
                )
        return found

    def _add_empty(self, sample: Sample, position: int) -> None:
        self.num_empty += 1
        if len(self.empty) < MAX_EXAMPLES:
            self.empty.append(Example(file_name=sample.file_name, split=sample.split, position=position))

    def _note(self, kind: str, rows: NDArray[np.int64], table: BoxTable) -> None:
        count, examples = self.suspicious.get(kind, (0, []))
        room = MAX_EXAMPLES - len(examples)
        examples += [self._example(table, int(row)) for row in rows[:room]]
        self.suspicious[kind] = count + len(rows), examples

    def _example(self, table: BoxTable, row: int) -> Example:
        position, label = int(table.image[row]), int(table.label[row])
        sample = self._batch[position - (len(self) - len(self._batch))]
        x0, y0, x1, y1 = table.xyxy[row].tolist()
        size = f"{x1 - x0:.4g} x {y1 - y0:.4g} px in {sample.width} x {sample.height}"
        return Example(
            file_name=sample.file_name,
            split=sample.split,
            detail=f"{one_line(self.classes[label], limit=40)}, {size}",
            position=position,
            box=(x0, y0, x1, y1),
            label=label,
        )


def ordered_splits(names: Iterable[str]) -> list[str]:
    """Train, val, test, then others by name."""
    return sorted(names, key=lambda name: (_SPLIT_NAMES.index(name) if name in _SPLIT_NAMES else 3, name))


def _labels(annotation: Annotation) -> list[int]:
    if annotation.label is not None:
        return [annotation.label]
    labels: list[int] = np.unique(annotation.labels).tolist()
    return labels


def _annotation_hash(annotation: Annotation) -> int:
    """The same for the same annotations in any order."""
    rows = np.column_stack([annotation.boxes, annotation.labels, annotation.ignore]).astype(np.float32)
    rows = rows[np.lexsort(rows.T)]
    digest = hashlib.blake2b(rows.tobytes() + repr(annotation.label).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _without_image(sample: Sample) -> Sample:
    """What waits for its batch must not hold on to the bytes."""
    return Sample(sample.image_id, sample.file_name, b"", sample.width, sample.height, sample.split, sample.annotation)


def _table(samples: list[Sample], *, first: int) -> BoxTable:
    """The boxes that are not to be ignored; those are rough by intention."""
    counts = [len(sample.annotation) for sample in samples]
    sizes = np.array([(sample.width, sample.height) for sample in samples], np.float32).reshape(-1, 2)
    keep = ~np.concatenate([np.zeros(0, np.bool_), *(sample.annotation.ignore for sample in samples)])
    images = np.repeat(np.arange(len(samples)), counts)[keep]
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(sample.annotation.boxes for sample in samples)])
    labels = np.concatenate([np.zeros(0, np.int32), *(sample.annotation.labels for sample in samples)])
    return BoxTable(boxes[keep], labels[keep], images + first, sizes[images])
