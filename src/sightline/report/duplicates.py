"""Images that are there more than once, byte for byte."""

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sightline.data.dataset import Dataset
from sightline.report.finding import MAX_EXAMPLES, Example, Finding, Frozen

_MEMBERS = 4
"""Copies of one image that are named; there may be thousands."""


class DuplicateGroup(Frozen):
    """Copies of one image.

    Attributes:
        size: How many there are.
        examples: The first few.
        across_splits: Whether they are in more than one split.
        annotated_differently: Whether what is known of them differs.
    """

    size: int
    examples: tuple[Example, ...]
    across_splits: bool
    annotated_differently: bool


class Duplicates(Frozen):
    """All copies of a dataset.

    Attributes:
        num_groups: Images that are there more than once.
        num_copies: Images that could go without losing anything.
        num_across_splits: Groups with members in more than one split.
        num_annotated_differently: Groups whose members' annotations differ.
        groups: The first few; those across splits first.
    """

    num_groups: int = 0
    num_copies: int = 0
    num_across_splits: int = 0
    num_annotated_differently: int = 0
    groups: tuple[DuplicateGroup, ...] = ()


@dataclass(slots=True)
class Fingerprints:
    """Hashes of every image in order, 48 bytes each."""

    images: bytearray = field(default_factory=bytearray)
    annotations: "array[int]" = field(default_factory=lambda: array("q"))
    splits: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, image: bytes, annotation: int, split: int) -> None:
        """Note one image: SHA-256 of its bytes, a hash of its annotation, the number of its split."""
        self.images += image
        self.annotations.append(annotation)
        self.splits.append(split)


def find_duplicates(fingerprints: Fingerprints, dataset: Dataset) -> Duplicates:
    """Group the images by their bytes."""
    groups = _equal_groups(np.frombuffer(fingerprints.images, "S32"))
    splits, annotations = np.asarray(fingerprints.splits), np.asarray(fingerprints.annotations)
    across = [len(np.unique(splits[group])) > 1 for group in groups]
    differs = [len(np.unique(annotations[group])) > 1 for group in groups]
    shown = sorted(range(len(groups)), key=lambda i: (not across[i], not differs[i], i))[: 2 * MAX_EXAMPLES]
    return Duplicates(
        num_groups=len(groups),
        num_copies=sum(len(group) - 1 for group in groups),
        num_across_splits=sum(across),
        num_annotated_differently=sum(differs),
        groups=tuple(
            DuplicateGroup(
                size=len(groups[i]),
                examples=_examples(groups[i], splits, dataset),
                across_splits=across[i],
                annotated_differently=differs[i],
            )
            for i in shown
        ),
    )


def duplicate_findings(duplicates: Duplicates) -> list[Finding]:
    """What the copies mean for training and its measurement."""
    found = []
    if duplicates.num_across_splits:
        found.append(
            Finding(
                kind="images in more than one split",
                severity="problem",
                count=duplicates.num_across_splits,
                unit="images",
                advice="The model is tested on what it was trained on: its score is too good. Keep each in one split.",
                examples=_flat([group for group in duplicates.groups if group.across_splits]),
            )
        )
    if duplicates.num_annotated_differently:
        found.append(
            Finding(
                kind="equal images annotated differently",
                severity="problem",
                count=duplicates.num_annotated_differently,
                unit="images",
                advice="The same bytes with different labels or boxes: at least one of them is wrong.",
                examples=_flat([group for group in duplicates.groups if group.annotated_differently]),
            )
        )
    if duplicates.num_groups:
        found.append(
            Finding(
                kind="equal images",
                severity="warning",
                count=duplicates.num_copies,
                unit="images",
                advice="Copies, byte for byte: they weigh more in training and bring nothing new.",
                examples=_flat(list(duplicates.groups)),
            )
        )
    return found


def _equal_groups(digests: NDArray[np.bytes_]) -> list[NDArray[np.int64]]:
    """Positions of equal values, for values that are there more than once, in order of their first position."""
    order = np.argsort(digests, kind="stable")
    sorted_digests = digests[order]
    begins = np.flatnonzero(np.concatenate([[True], sorted_digests[1:] != sorted_digests[:-1], [True]]))
    long = np.flatnonzero(np.diff(begins) > 1)
    groups = [order[begins[i] : begins[i + 1]] for i in long]
    return sorted(groups, key=lambda group: int(group[0]))


def _examples(group: NDArray[np.int64], splits: NDArray[np.int64], dataset: Dataset) -> tuple[Example, ...]:
    """The first members; one of each split comes first, so that a leak is seen as one."""
    _, firsts = np.unique(splits[group], return_index=True)
    rest = np.setdiff1d(np.arange(len(group)), firsts)
    chosen = sorted(np.concatenate([firsts, rest])[:_MEMBERS].tolist())
    samples = [(int(group[i]), dataset[int(group[i])]) for i in chosen]
    return tuple(Example(file_name=s.file_name, split=s.split, position=position) for position, s in samples)


def _flat(groups: list[DuplicateGroup]) -> tuple[Example, ...]:
    """Members of the first groups, each told by its group's first name."""
    return tuple(
        example.model_copy(update={"detail": f"{group.size} copies" if number == 0 else "the same image"})
        for group in groups[: MAX_EXAMPLES // 2]
        for number, example in enumerate(group.examples[:2])
    )
