import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sightline.report.finding import Finding
from sightline.report.inspection import Inspection, inspect_dataset

BOX = (0, 10, 10, 40, 40)


def finding(inspection: Inspection, kind: str) -> Finding | None:
    return next((found for found in inspection.findings if found.kind == kind), None)


def test_counts_and_sizes_are_those_of_the_source(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat", "dog")
    source.add("train", "a.png", [(0, 10, 10, 20, 10), (1, 50, 10, 50, 50)])
    source.add("train", "b.png", [(0, 10, 5, 105, 90)])
    source.add("val", "c.png", [], size=(50, 60))
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    assert (inspection.num_images, inspection.num_boxes, inspection.num_empty) == (3, 3, 1)
    assert list(inspection.splits) == ["train", "val"]
    assert inspection.class_counts("train") == {"cat": 2, "dog": 1}
    assert inspection.class_totals() == {"cat": 2, "dog": 1}
    assert inspection.boxes_per_image is not None
    assert inspection.boxes_per_image.counts == (1, 1, 1)
    assert inspection.boxes is not None
    assert (inspection.boxes.small, inspection.boxes.medium, inspection.boxes.large) == (1, 1, 1)
    assert inspection.boxes.width_px is not None
    assert (inspection.boxes.width_px.minimum, inspection.boxes.width_px.maximum) == (20, 105)
    assert inspection.images.common_sizes == ((200, 100, 2), (50, 60, 1))
    empty = finding(inspection, "images without boxes")
    assert empty is not None
    assert [example.file_name for example in empty.examples] == ["val/c.png"]


def test_copies_are_found_with_their_names(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    source.add("train", "a.png", [BOX], seed=1)
    source.add("train", "b.png", [BOX], seed=2)
    source.add("train", "copy.png", [BOX], seed=1)
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    assert inspection.num_duplicates == 1
    (group,) = inspection.duplicates.groups
    assert [example.file_name for example in group.examples] == ["train/a.png", "train/copy.png"]
    assert not group.across_splits
    assert not group.annotated_differently
    assert finding(inspection, "images in more than one split") is None
    assert finding(inspection, "equal images annotated differently") is None


def test_copies_across_splits_are_a_problem(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    source.add("train", "a.png", [BOX], seed=1)
    source.add("train", "b.png", [BOX], seed=2)
    source.add("val", "leak.png", [BOX], seed=1)
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    leak = finding(inspection, "images in more than one split")
    assert leak is not None
    assert (leak.severity, leak.count) == ("problem", 1)
    assert {(example.file_name, example.split) for example in leak.examples} == {
        ("train/a.png", "train"),
        ("val/leak.png", "val"),
    }
    assert inspection.findings[0] is leak


def test_equal_images_with_other_boxes_are_a_problem(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    other = (0, 90, 10, 40, 40)
    source.add("train", "a.png", [BOX, other], seed=1)
    source.add("train", "same_in_other_order.png", [other, BOX], seed=1)
    source.add("train", "b.png", [BOX], seed=2)
    source.add("train", "other.png", [other], seed=2)
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    assert inspection.duplicates.num_groups == 2
    found = finding(inspection, "equal images annotated differently")
    assert found is not None
    assert [example.file_name for example in found.examples] == ["train/b.png", "train/other.png"]


@pytest.mark.parametrize(
    ("kind", "box"),
    [
        ("tiny boxes", (0, 10, 10, 1.5, 30)),
        ("very long boxes", (0, 10, 10, 105, 5)),
        ("boxes around the whole image", (0, 0, 0, 199, 99)),
        ("boxes drawn twice", (0, 10, 10, 40, 40.5)),
        ("boxes with two classes", (1, 10, 10, 40, 40.5)),
    ],
)
def test_a_suspicious_box_is_found(
    coco_source: Callable[..., Any], tmp_path: Path, kind: str, box: tuple[float, ...]
) -> None:
    source = coco_source("cat", "dog")
    source.add("train", "good.png", [BOX, (1, 60, 10, 40, 40)])
    source.add("train", "bad.png", [BOX, box])
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    boxes = [found for found in inspection.findings if found.unit == "boxes"]
    assert [(found.kind, found.count) for found in boxes] == [(kind, 1)]
    (example,) = boxes[0].examples
    assert example.file_name == "train/bad.png"
    assert example.label == box[0]
    assert example.box == pytest.approx((box[1], box[2], box[1] + box[3], box[2] + box[4]), abs=1e-4)


def test_examples_are_bounded_and_counts_are_not(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    for number in range(30):
        source.add("train", f"{number}.png", [(0, 10, 10, 1, 1)])
    tiny = finding(inspect_dataset(source.ingest(tmp_path / "set")), "tiny boxes")
    assert tiny is not None
    assert tiny.count == 30
    assert len(tiny.examples) == 12


def test_rare_and_missing_classes_are_named(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("plenty", "rare", "only val", "never")
    for number in range(10):
        source.add("train", f"{number}.png", [(0, 10, 10, 20, 20)] + ([(1, 50, 50, 20, 20)] if number < 9 else []))
    source.add("val", "v.png", [(2, 10, 10, 20, 20)])
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    named = {found.kind: found.names for found in inspection.findings if found.unit == "classes"}
    assert named == {
        "classes without training images": ("only val",),
        "classes with few training images": ("rare",),
        "classes that never occur": ("never",),
    }


def test_rejects_are_grouped_with_examples(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    source.add("train", "a.png", [BOX, (0, 500, 10, 10, 10)])
    source.add_bytes("train", "broken.png", b"no image at all")
    inspection = inspect_dataset(source.ingest(tmp_path / "set"))

    groups = {(group.action, group.reason): group for group in inspection.rejects}
    assert set(groups) == {("image rejected", "not an image"), ("box rejected", "box outside the image")}
    assert [example.file_name for example in groups["image rejected", "not an image"].examples] == ["train/broken.png"]


def test_classification_counts_labels(class_folder: Any) -> None:
    inspection = inspect_dataset(class_folder)

    assert inspection.task == "classification"
    assert inspection.boxes is None
    assert inspection.boxes_per_image is None
    assert inspection.num_empty == 0
    assert inspection.class_totals() == {"cat": 14, "dog": 3, "fish": 1}
    assert {found.kind: found.names for found in inspection.findings} == {
        "classes without training images": ("fish",),
        "classes with few training images": ("dog",),
    }


def test_one_split_can_be_inspected_alone(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    source.add("train", "a.png", [BOX], seed=1)
    source.add("val", "leak.png", [BOX, (0, 90, 10, 1, 1)], seed=1)
    inspection = inspect_dataset(source.ingest(tmp_path / "set").select("val"))

    assert (inspection.num_images, inspection.num_boxes, list(inspection.splits)) == (1, 2, ["val"])
    assert inspection.num_duplicates == 0


def test_an_inspection_is_json_and_progress_reaches_the_end(coco_source: Callable[..., Any], tmp_path: Path) -> None:
    source = coco_source("cat")
    for number in range(3):
        source.add("train", f"{number}.png", [BOX])
    seen: list[tuple[int, int]] = []
    inspection = inspect_dataset(source.ingest(tmp_path / "set"), progress=lambda *step: seen.append(step))

    assert seen[-1] == (3, 3)
    assert json.loads(inspection.to_json())["num_boxes"] == 3
    assert Inspection.model_validate_json(inspection.to_json()) == inspection
