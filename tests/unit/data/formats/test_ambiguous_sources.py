"""Sources that are easily misread: lost labels, links, splits without annotations, masks, panoptic files."""

import json
import posixpath

import pytest
from builders import boxes_of, coco_json, details_of, jpeg, png, rejects_of, voc_xml, write_tree

from sightline.errors import ConfigError, FormatError, TooManyRejectedError

BOX = "0 0.5 0.5 0.5 0.5\n"
YAML = "names: [cat]\n"
LOST = "label file without an image"


@pytest.mark.parametrize(
    ("image", "label", "lost"),
    [
        ("images/train/1.jpg", "labels/train/1.txt", "labels/train/2.txt"),
        ("images/train/1.jpg", "labels/train/1.txt", "labels/train/sub/2.txt"),
        ("train/images/1.jpg", "train/labels/1.txt", "train/labels/2.txt"),
        ("images/1.jpg", "labels/1.txt", "labels/2.txt"),
        ("1.jpg", "1.txt", "2.txt"),
    ],
)
def test_a_yolo_label_file_without_an_image_is_a_reject(image, label, lost, tmp_path, ingest):
    files = {"data.yaml": YAML, image: jpeg(), label: BOX, lost: BOX + "\n" + BOX, "readme.txt": "All about cats\n"}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert rejects_of(dataset) == [(lost, LOST, "image rejected")]
    assert details_of(dataset) == ["2 lines"]


def test_the_label_file_of_an_image_that_no_split_lists_is_not_lost(tmp_path, ingest):
    files = {f"images/{name}.jpg": jpeg(seed=number) for number, name in enumerate("ab")}
    files |= {f"labels/{name}.txt": BOX for name in "abc"}
    files |= {"data.yaml": YAML + "train: train.txt\n", "train.txt": "images/a.jpg\n"}
    assert rejects_of(ingest(write_tree(tmp_path / "s", files))) == [("labels/c.txt", LOST, "image rejected")]


@pytest.mark.parametrize(
    ("splits", "image", "label"),
    [
        ("", "train/1.jpg", "labels/train/1.txt"),
        ("train: images/train\n", "train/1.jpg", "labels/train/1.txt"),
        ("train: images/train\n", "images/train/1.jpg", "labels/train/1.txt"),
        ("train: train/images\n", "train/1.jpg", "train/labels/1.txt"),
        ("train: train.txt\n", "train/1.jpg", "labels/train/1.txt"),
    ],
)
def test_yolo_images_may_lie_elsewhere(splits, image, label, tmp_path, ingest):
    files = {"data.yaml": YAML + splits, label: BOX}
    if "train.txt" in splits:
        files["train.txt"] = "train/1.jpg\n"
    source = write_tree(tmp_path / "labels", files)
    write_tree(tmp_path / "pictures", {image: jpeg(24, 16)})
    dataset = ingest(source, images=str(tmp_path / "pictures"))
    assert boxes_of(dataset) == {image: [("cat", 6, 4, 18, 12, False)]}
    assert list(dataset.info.splits) == ["train"]
    assert rejects_of(dataset) == []


@pytest.mark.parametrize("format", ["folder", "deeppcb"])
def test_images_elsewhere_are_refused_where_they_mean_nothing(format, tmp_path, ingest):
    with pytest.raises(ConfigError, match=f"--images: format '{format}' has its images in the source"):
        ingest(write_tree(tmp_path / "s", {"a/1.png": png()}), format=format, images=str(tmp_path))


LINKED = {
    "yolo": ("images", {"data.yaml": YAML, "labels/1.txt": BOX}),
    "voc": ("JPEGImages", {"Annotations/1.xml": voc_xml([("cat", 1, 2, 11, 12)], filename="1.jpg")}),
    "coco": ("images", {"instances.json": coco_json(["1.jpg"], [(1, 1, 1, 2, 10, 10)])}),
}


@pytest.mark.parametrize("format", LINKED)
def test_a_linked_folder_of_images_is_explained(format, tmp_path, ingest):
    folder, files = LINKED[format]
    real = write_tree(tmp_path / "real", {"1.jpg": jpeg()})
    source = write_tree(tmp_path / "s", files)
    (source / folder).symlink_to(real)
    with pytest.raises((FormatError, TooManyRejectedError), match=rf"{folder}.* is a link or leads out.*with --images"):
        ingest(source)
    assert len(ingest(source, images=str(real))) == 1


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["train/1.jpg", "val/2.jpg"], "images lie directly in 'train', 'val', which are names of splits"),
        (["train2017/1.jpg", "test/2.jpg"], "which are names of splits"),
        (["images/1.jpg", "masks/1.png"], "'images' is the name of a folder of images or segmentation masks"),
        (["photos/1.jpg", "Mask/1.png"], "segmentation masks"),
        (["train/images/1.jpg", "train/labels_png/1.png", "train/masks/1.png"], "'masks'|'images'"),
        (["scans/1.jpg", "scans/2.jpg", "traced/1.png", "traced/2.png"], "a JPEG and a mask of the same name"),
    ],
)
def test_folders_that_are_no_classes_are_refused(names, reason, tmp_path, ingest):
    files = {name: png(seed=i) if name.endswith("png") else jpeg(seed=i) for i, name in enumerate(names)}
    source = write_tree(tmp_path / "s", files)
    with pytest.raises(FormatError, match=rf"no annotations found in .*({reason}).*--format folder"):
        ingest(source)
    assert ingest(source, format="folder").info.task == "classification"


@pytest.mark.parametrize(
    "names",
    [
        ["cat/1.jpg", "dog/1.jpg"],
        ["bus/1.jpg", "train/1.jpg", "car/1.jpg"],
        ["train/cat/1.jpg", "val/dog/1.jpg"],
        ["cat/1.jpg", "dog/1.png", "dog/2.jpg"],
    ],
)
def test_folders_that_are_classes_are_taken(names, tmp_path, ingest):
    source = write_tree(tmp_path / "s", {name: jpeg(seed=number) for number, name in enumerate(names)})
    assert set(ingest(source).classes) == {posixpath.basename(posixpath.dirname(name)) for name in names}


def test_boxes_of_a_coco_panoptic_file(tmp_path, ingest):
    segments = [
        {"id": 8, "category_id": 1, "bbox": [1, 2, 10, 10], "area": 60, "iscrowd": 0},
        {"id": 9, "category_id": 2, "bbox": [3, 4, 10, 10], "area": 60, "iscrowd": 1},
        {"id": 10, "category_id": 9, "bbox": [3, 4, 10, 10], "area": 60, "iscrowd": 0},
        "no segment",
    ]
    content = {
        "images": [{"id": 5, "file_name": "1.jpg", "width": 24, "height": 16}],
        "annotations": [{"image_id": 5, "file_name": "1.png", "segments_info": segments}],
        "categories": [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "crowd", "isthing": 1}],
    }
    files = {"1.jpg": jpeg(24, 16), "panoptic_train.json": json.dumps(content)}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert boxes_of(dataset) == {"1.jpg": [("cat", 1, 2, 11, 12, False), ("crowd", 3, 4, 13, 14, True)]}
    assert ("1.jpg", "unknown class", "box rejected") in rejects_of(dataset)
