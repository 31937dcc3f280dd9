"""What can be said of a dataset without training on it: counts, sizes, copies, suspicious boxes, rejects."""

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sightline.data.dataset import Dataset
from sightline.data.record import Task
from sightline.data.schema import SplitInfo
from sightline.report.balance import balance_findings
from sightline.report.duplicates import Duplicates, duplicate_findings, find_duplicates
from sightline.report.finding import Finding, Frozen, by_severity
from sightline.report.histogram import Histogram, Quantiles, count_histogram, log_histogram, quantiles
from sightline.report.rejected import RejectGroup, group_rejects
from sightline.report.survey import Survey, ordered_splits

SHOWN_IMAGES = 30
_COMMON_SIZES = 5
_PROGRESS_EVERY = 64
_SMALL, _MEDIUM = 32**2, 96**2

InspectProgress = Callable[[int, int], None]
"""Called with (images done, images in all) as work goes on."""


class BoxSummary(Frozen):
    """How large boxes are; those to be ignored are left out.

    Attributes:
        small: Boxes below 32 x 32 pixels of area, as COCO counts them.
        medium: Boxes below 96 x 96.
        large: The rest.
        area_share: Area as a share of the image's.
        aspect: Width by height.
    """

    small: int
    medium: int
    large: int
    width: Histogram
    height: Histogram
    area_share: Histogram
    aspect: Histogram
    width_px: Quantiles | None
    height_px: Quantiles | None


class ImageSummary(Frozen):
    """How large images are.

    Attributes:
        num_sizes: Different sizes.
        common_sizes: (width, height, images) of the most frequent ones.
    """

    width_px: Quantiles | None
    height_px: Quantiles | None
    num_sizes: int
    common_sizes: tuple[tuple[int, int, int], ...]


class Inspection(Frozen):
    """All that was found; every part can be written as JSON.

    Attributes:
        splits: Counts of each split that was looked at; boxes by class include those to ignore.
        num_empty: Images without boxes, or without a label in a classification dataset.
        boxes: None for classification.
        findings: What to look at, worst first.
        showcase: Positions of images that show some of every class and split.
    """

    name: str
    task: Task
    classes: tuple[str, ...]
    source: str
    source_format: str
    created: str
    content_hash: str
    image_bytes: int
    num_images: int
    num_boxes: int
    num_ignored_boxes: int
    num_empty: int
    splits: dict[str, SplitInfo]
    images: ImageSummary
    boxes_per_image: Histogram | None
    boxes: BoxSummary | None
    duplicates: Duplicates
    findings: tuple[Finding, ...]
    rejects: tuple[RejectGroup, ...]
    showcase: tuple[int, ...]

    @property
    def num_duplicates(self) -> int:
        """Images that are a copy of an earlier one, byte for byte."""
        return self.duplicates.num_copies

    @property
    def count_unit(self) -> str:
        """What classes are counted in: "boxes", or "images" for classification."""
        return "boxes" if self.task == "detection" else "images"

    def class_counts(self, split: str) -> dict[str, int]:
        """Boxes, or images for classification, of each class of a split."""
        info = self.splits[split]
        return info.boxes_per_class if self.task == "detection" else info.images_per_class

    def class_totals(self) -> dict[str, int]:
        """Boxes, or images for classification, of every class over all splits; most first, zeros too."""
        totals = dict.fromkeys(self.classes, 0)
        for split in self.splits:
            for name, count in self.class_counts(split).items():
                totals[name] += count
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def images_of(self, name: str) -> int:
        """Images that show a class, over all splits."""
        return sum(info.images_per_class.get(name, 0) for info in self.splits.values())

    def to_json(self) -> str:
        """All of it as JSON text."""
        return self.model_dump_json(indent=2)


def inspect_dataset(dataset: Dataset, *, progress: InspectProgress | None = None) -> Inspection:
    """Look at every image once, shard by shard.

    >>> import sightline
    >>> inspect_dataset(sightline.open_dataset("boards")).num_duplicates  # doctest: +SKIP
    """
    survey = _survey(dataset, progress)
    info = dataset.info
    detection = info.task == "detection"
    splits = {name: info.splits[name] for name in ordered_splits(survey.splits)}
    duplicates = find_duplicates(survey.fingerprints, dataset)
    findings = [*duplicate_findings(duplicates), *balance_findings(info.classes, splits), *survey.findings()]
    return Inspection(
        name=info.name,
        task=info.task,
        classes=info.classes,
        source=info.source,
        source_format=info.source_format,
        created=info.created,
        content_hash=info.content_hash,
        image_bytes=survey.image_bytes,
        num_images=len(survey),
        num_boxes=sum(survey.num_boxes),
        num_ignored_boxes=survey.num_ignored,
        num_empty=survey.num_empty,
        splits=splits,
        images=_summarise_images(survey),
        boxes_per_image=count_histogram(np.asarray(survey.num_boxes, np.int64)) if detection else None,
        boxes=_summarise_boxes(survey.box_measures()) if detection else None,
        duplicates=duplicates,
        findings=by_severity([*findings, *_empty_finding(survey, detection)]),
        rejects=group_rejects(dataset),
        showcase=survey.showcase.choose(SHOWN_IMAGES),
    )


def _survey(dataset: Dataset, progress: InspectProgress | None) -> Survey:
    survey = Survey(dataset.classes)
    for shard in range(dataset.num_shards):
        for sample in dataset.read_shard(shard):
            survey.add(sample)
            if progress and len(survey) % _PROGRESS_EVERY == 0:
                progress(len(survey), len(dataset))
    survey.flush()
    if progress:
        progress(len(survey), len(dataset))
    return survey


def _summarise_boxes(measures: NDArray[np.float32]) -> BoxSummary:
    width, height, share = measures.T
    area = width * height
    small, medium = int((area < _SMALL).sum()), int((area < _MEDIUM).sum())
    return BoxSummary(
        small=small,
        medium=medium - small,
        large=len(area) - medium,
        width=log_histogram(width, base=2, steps=2, low=0.5, high=2**16),
        height=log_histogram(height, base=2, steps=2, low=0.5, high=2**16),
        area_share=log_histogram(share, base=10, steps=4, low=1e-6, high=1),
        aspect=log_histogram(width / height, base=2, steps=2, low=2**-6, high=2**6),
        width_px=quantiles(width),
        height_px=quantiles(height),
    )


def _summarise_images(survey: Survey) -> ImageSummary:
    sizes = Counter(zip(survey.widths, survey.heights, strict=True))
    return ImageSummary(
        width_px=quantiles(np.asarray(survey.widths)),
        height_px=quantiles(np.asarray(survey.heights)),
        num_sizes=len(sizes),
        common_sizes=tuple((width, height, count) for (width, height), count in sizes.most_common(_COMMON_SIZES)),
    )


def _empty_finding(survey: Survey, detection: bool) -> list[Finding]:
    if not survey.num_empty:
        return []
    advice = (
        "Fine if nothing is to be found there: such images teach what to leave alone. A mistake if objects were missed."
    )
    return [
        Finding(
            kind="images without boxes" if detection else "images without a label",
            severity="note" if detection else "warning",
            count=survey.num_empty,
            unit="images",
            advice=advice if detection else "They cannot be used to train a classifier.",
            examples=tuple(survey.empty),
        )
    ]
