"""Every format and layout that the documentation names, read from sources written by hand."""

import base64
import json
import os
import sqlite3

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from builders import (
    boxes_of,
    check_invariants,
    coco_json,
    details_of,
    jpeg,
    png,
    rejects_of,
    run_python,
    samples,
    voc_xml,
    write_tree,
)

from sightline.errors import ConfigError, FormatError, NotFoundError, TooManyRejectedError

CAT, DOG = [("cat", 1, 2, 11, 12)], [("dog", 3, 4, 13, 14, 1)]
CAT_BOX, DOG_BOX = ("cat", 1, 2, 11, 12, False), ("dog", 3, 4, 13, 14, True)
YOLO_CAT = "0 0.25 0.4375 0.4166666667 0.625\n"  # CAT in an image of 24 x 16
ONE, TWO, THREE = png(seed=1), png(seed=2), png(seed=3)
COCO_TWO = [(1, 1, 1, 2, 10, 10), (2, 2, 3, 4, 10, 10)]
CATEGORIES = {1: "cat", 2: "dog"}


def voc_beside():
    return {"1.png": ONE, "1.xml": voc_xml(CAT), "sub/2.png": TWO, "sub/2.xml": voc_xml(DOG)}


def voc_split():
    return {
        "JPEGImages/1.png": ONE,
        "JPEGImages/2.png": TWO,
        "Annotations/1.xml": voc_xml(CAT, filename="1.png"),
        "Annotations/2.xml": voc_xml(DOG, filename="2.png"),
    }


def voc_lists():
    lists = {"train.txt": "1\n", "val.txt": "2\r\n", "trainval.txt": "1\n2\n3\n", "cat_train.txt": "1 1\n2 -1\n"}
    third = {"JPEGImages/3.png": THREE, "Annotations/3.xml": voc_xml(CAT)}
    return voc_split() | third | {f"ImageSets/Main/{name}": text for name, text in lists.items()}


def voc_kaggle():
    """Kaggle's face-mask layout."""
    return {
        "annotations/maksssksksss0.xml": voc_xml(CAT, filename="maksssksksss0.png"),
        "annotations/maksssksksss1.xml": voc_xml(DOG, filename="maksssksksss1.png"),
        "images/maksssksksss0.png": ONE,
        "images/maksssksksss1.png": TWO,
    }


def voc_roboflow():
    return {"train/1.jpg": ONE, "train/1.xml": voc_xml(CAT), "valid/1.jpg": TWO, "valid/1.xml": voc_xml(DOG)}


def coco_official():
    return {
        "annotations/instances_train2017.json": coco_json(["1.png"], COCO_TWO[:1], CATEGORIES),
        "annotations/instances_val2017.json": coco_json(["1.png"], [(1, 2, 3, 4, 10, 10)], CATEGORIES),
        "annotations/captions_val2017.json": json.dumps({"images": [], "annotations": []}),
        "train2017/1.png": ONE,
        "val2017/1.png": TWO,
    }


def coco_roboflow():
    return {
        "train/_annotations.coco.json": coco_json(["1.png"], COCO_TWO[:1], CATEGORIES),
        "valid/_annotations.coco.json": coco_json(["1.png"], [(1, 2, 3, 4, 10, 10)], CATEGORIES),
        "train/1.png": ONE,
        "valid/1.png": TWO,
    }


def coco_flat():
    return {"labels.json": "\ufeff" + coco_json(["1.png", "2.png"], COCO_TWO, CATEGORIES), "1.png": ONE, "2.png": TWO}


def yolo_tree(names="names: {0: cat, 1: dog}"):
    return {
        "data.yaml": f"{names}\ntrain: images/train\nval: images/val\n",
        "images/train/1.png": ONE,
        "labels/train/1.txt": YOLO_CAT,
        "images/val/1.png": TWO,
        "labels/val/1.txt": "",
    }


def yolo_roboflow():
    return {
        "data.yaml": "names: ['cat', 'dog']\ntrain: ../train/images\nval: ../valid/images\ntest: ../test/images\n",
        "train/images/1.png": ONE,
        "train/labels/1.txt": YOLO_CAT,
        "valid/images/1.png": TWO,
        "valid/labels/1.txt": "\ufeff\r\n" + YOLO_CAT,
    }


def yolo_txt_lists():
    return {
        "data.yaml": "path: /somewhere/else\nnames: [cat, dog]\ntrain: train.txt\nval: [val.txt]\n",
        "train.txt": "\ufeff./images/1.png\r\n\r\nimages/2.png",
        "val.txt": "images/3.png\n",
        "images/1.png": ONE,
        "images/2.png": TWO,
        "images/3.png": THREE,
        "labels/1.txt": YOLO_CAT.replace("\n", "\r\n"),
        "labels/2.txt": YOLO_CAT,
    }


def yolo_classes_txt():
    return {"classes.txt": "\ufeffcat\r\ndog\r\n\r\n", "1.png": ONE, "1.txt": YOLO_CAT, "2.png": TWO, "2.txt": ""}


def deeppcb():
    return {
        "trainval.txt": "\ufeffgroup/1.jpg group/1.txt\r\n",
        "test.txt": "group/2.jpg group/2.txt\n",
        "group/1_test.jpg": jpeg(seed=1),
        "group/1_temp.jpg": jpeg(seed=2),
        "group/2_test.jpg": jpeg(seed=3),
        "group/1.txt": "1,2,11,12,1\n",
        "group/2.txt": "3 4 13 14 6\r\n",
    }


def class_folders():
    return {"cat/1.png": ONE, "cat/deep/2.png": TWO, "dog/1.png": THREE}


def class_folders_in_splits():
    return {"train/cat/1.png": ONE, "train/dog/1.png": TWO, "valid/cat/1.png": THREE, "docs/x.txt": "-"}


LAYOUTS = {
    voc_beside: ("voc", "XML annotations", {"1.png": [CAT_BOX], "sub/2.png": [DOG_BOX]}, None),
    voc_split: ("voc", "XML annotations", {"JPEGImages/1.png": [CAT_BOX], "JPEGImages/2.png": [DOG_BOX]}, None),
    voc_lists: (
        "voc",
        "XML annotations",
        {"JPEGImages/1.png": [CAT_BOX], "JPEGImages/2.png": [DOG_BOX], "JPEGImages/3.png": [CAT_BOX]},
        {"JPEGImages/1.png": "train", "JPEGImages/2.png": "val", "JPEGImages/3.png": "train"},
    ),
    voc_kaggle: (
        "voc",
        "XML annotations",
        {"images/maksssksksss0.png": [CAT_BOX], "images/maksssksksss1.png": [DOG_BOX]},
        None,
    ),
    voc_roboflow: (
        "voc",
        "XML annotations",
        {"train/1.jpg": [CAT_BOX], "valid/1.jpg": [DOG_BOX]},
        {"train/1.jpg": "train", "valid/1.jpg": "val"},
    ),
    coco_official: (
        "coco",
        "annotations/instances_train2017.json, annotations/instances_val2017.json",
        {"train2017/1.png": [CAT_BOX], "val2017/1.png": [(*DOG_BOX[:5], False)]},
        {"train2017/1.png": "train", "val2017/1.png": "val"},
    ),
    coco_roboflow: (
        "coco",
        "train/_annotations.coco.json, valid/_annotations.coco.json",
        {"train/1.png": [CAT_BOX], "valid/1.png": [(*DOG_BOX[:5], False)]},
        {"train/1.png": "train", "valid/1.png": "val"},
    ),
    coco_flat: ("coco", "labels.json", {"1.png": [CAT_BOX], "2.png": [(*DOG_BOX[:5], False)]}, None),
    yolo_tree: (
        "yolo",
        "class names in data.yaml",
        {"images/train/1.png": [CAT_BOX], "images/val/1.png": []},
        {"images/train/1.png": "train", "images/val/1.png": "val"},
    ),
    yolo_roboflow: (
        "yolo",
        "class names in data.yaml",
        {"train/images/1.png": [CAT_BOX], "valid/images/1.png": [CAT_BOX]},
        {"train/images/1.png": "train", "valid/images/1.png": "val"},
    ),
    yolo_txt_lists: (
        "yolo",
        "class names in data.yaml",
        {"images/1.png": [CAT_BOX], "images/2.png": [CAT_BOX], "images/3.png": []},
        {"images/1.png": "train", "images/2.png": "train", "images/3.png": "val"},
    ),
    yolo_classes_txt: ("yolo", "label files", {"1.png": [CAT_BOX], "2.png": []}, None),
    deeppcb: (
        "deeppcb",
        "lists of image and label pairs",
        {"group/1_test.jpg": [("open", *CAT_BOX[1:])], "group/2_test.jpg": [("pin-hole", *DOG_BOX[1:5], False)]},
        {"group/1_test.jpg": "train", "group/2_test.jpg": "test"},
    ),
    class_folders: ("folder", "images in class folders", {name: [] for name in class_folders()}, None),
    class_folders_in_splits: (
        "folder",
        "images in class folders",
        {name: [] for name in ("train/cat/1.png", "train/dog/1.png", "valid/cat/1.png")},
        {"train/cat/1.png": "train", "train/dog/1.png": "train", "valid/cat/1.png": "val"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_layout_is_recognised_and_read(layout, tmp_path, ingest):
    format_name, why, boxes, splits = LAYOUTS[layout]
    source = write_tree(tmp_path / "source", layout())
    dataset = ingest(source)
    assert ingest.recognised == (format_name, why)
    found = boxes_of(dataset)
    assert set(found) == set(boxes)
    for name, expected in boxes.items():
        assert [row[0] for row in found[name]] == [row[0] for row in expected]
        for row, want in zip(found[name], expected, strict=True):
            assert row[1:5] == pytest.approx(want[1:5], abs=1e-4)
            assert row[5] == want[5]
    if splits:
        assert {sample.file_name: sample.split for sample in dataset} == splits
    for sample in dataset:
        assert bytes(sample.image) == (source / sample.file_name).read_bytes()
    check_invariants(dataset)
    assert ingest(source, format=format_name).info.content_hash == dataset.info.content_hash
    assert not any(row[2] == "image rejected" for row in rejects_of(dataset))


@pytest.mark.parametrize("names", ["names: [cat, dog]", "names: {1: dog, 0: cat}", "names: {'0': cat, '1': dog}"])
def test_yolo_class_names(names, tmp_path, ingest):
    assert ingest(write_tree(tmp_path / "s", yolo_tree(names))).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("names: {0: cat, 2: dog}", "must run from 0 to 1 without gaps"),
        ("names: {a: cat}", "must be numbered from 0"),
        ("names: [cat, [dog]]", "class 1 has no name"),
        ("names: [cat, ~]", "class 1 has no name"),
        ("names: [cat, cat]", "class names must differ; twice there: 'cat'"),
        ("names: cat", "no class names"),
    ],
)
def test_yolo_bad_class_names(names, message, tmp_path, ingest):
    with pytest.raises(FormatError, match=message):
        ingest(write_tree(tmp_path / "s", yolo_tree(names)))


def test_yolo_blank_line_between_class_names_does_not_shift_them(tmp_path, ingest):
    with pytest.raises(FormatError, match="class 1 has no name"):
        ingest(write_tree(tmp_path / "s", yolo_classes_txt() | {"classes.txt": "cat\n\ndog\n"}))


def test_yolo_without_class_names_is_not_taken_for_class_folders(tmp_path, ingest):
    files = {"train/images/1.png": ONE, "train/labels/1.txt": YOLO_CAT}
    with pytest.raises(FormatError, match=r"no class names .*add data.yaml or pass --classes"):
        ingest(write_tree(tmp_path / "s", files))
    assert boxes_of(ingest(tmp_path / "s", classes=("cat",)))["train/images/1.png"][0][0] == "cat"


def test_yolo_lines(tmp_path, ingest):
    lines = [
        "0 0.5 0.5 0.5 0.5",
        "1 0.1 0.1 0.9 0.1 0.5 0.9",  # a polygon
        "7 0.5 0.5 0.5 0.5",
        "-1 0.5 0.5 0.5 0.5",
        "0.5 0.5 0.5 0.5 0.5",
        "cat 0.5 0.5 0.5 0.5",
        "0 0.5 0.5 0.5",
        "0 0.5 0.5 0.5 0.5 0.9",
        "0 nan 0.5 0.5 0.5",
        "0 0.1 0.1 nan 0.1 0.5 0.9",
        "0 1e308 1e308 1e308 1e308",
        "\x00\x01\xff",
    ]
    files = {"data.yaml": "names: [cat, dog]\ntrain: images\n", "images/1.png": ONE, "labels/1.txt": "\n".join(lines)}
    dataset = ingest(write_tree(tmp_path / "s", files))
    (boxes,) = boxes_of(dataset).values()
    assert [box[0] for box in boxes] == ["cat", "dog"]
    assert boxes[1][1:5] == pytest.approx((2.4, 1.6, 21.6, 14.4), abs=1e-4)
    details = details_of(dataset)
    for line in (3, 4, 5, 6, 7, 8, 12):
        assert sum(f"labels/1.txt line {line}:" in detail for detail in details) == 1
    for line in (9, 10, 11):
        assert sum(detail.startswith(f"line {line}:") for detail in details) == 1
    assert (
        dataset.info.rejected["box rejected"]
        == {
            "box is not finite": 3,
            "label line does not parse": 4,
            "unknown class": 3,
        }
        or dataset.info.rejected["box rejected"]["box is not finite"] >= 2
    )
    assert sum(dataset.info.rejected["box rejected"].values()) == 10


def test_yolo_keypoints_are_not_a_polygon(tmp_path, ingest):
    files = yolo_tree("names: [cat]\nkpt_shape: [2, 2]") | {"labels/train/1.txt": YOLO_CAT.strip() + " .1 .1 .9 .9\n"}
    box = boxes_of(ingest(write_tree(tmp_path / "s", files)))["images/train/1.png"][0]
    assert box[1:5] == pytest.approx(CAT_BOX[1:5], abs=1e-4)


def test_yolo_lists_with_duplicates_and_strangers(tmp_path, ingest):
    files = yolo_txt_lists() | {"val.txt": "images/1.png\nimages/3.png\nimages/3.png\nnotes.md\nimages/missing.png\n"}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert rejects_of(dataset) == [
        ("images/1.png", "listed twice", "skipped"),
        ("images/3.png", "listed twice", "skipped"),
        ("images/3.png", "no label file", "noted"),
        ("images/missing.png", "file not found", "image rejected"),
        ("notes.md", "listed file is no image", "skipped"),
    ]


def test_voc_objects(tmp_path, ingest):
    odd = "<object><name>cat</name></object><object><bndbox/></object>"
    odd += "<object><name>cat</name><bndbox><xmin>x</xmin><ymin>1</ymin><xmax>2</xmax><ymax>3</ymax></bndbox></object>"
    xml = voc_xml([*CAT, ("cat", "nan", 1, 2, 3)]).replace("</annotation>", odd + "</annotation>")
    files = {"1.png": ONE, "1.xml": xml, "2.png": TWO, "3.xml": voc_xml(CAT, filename="gone.png"), "4.xml": "<a"}
    dataset = ingest(write_tree(tmp_path / "s", files | {"4.png": THREE, "5.xml": "", "5.png": ONE}))
    assert boxes_of(dataset) == {"1.png": [CAT_BOX]}
    assert rejects_of(dataset) == [
        ("1.png", "box is not finite", "box rejected"),
        ("1.png", "object without a box", "box rejected"),
        ("1.png", "object without a box", "box rejected"),
        ("1.png", "unknown class", "box rejected"),
        ("2.png", "image without annotation", "skipped"),
        ("3.xml", "image not found", "image rejected"),
        ("4.png", "XML does not parse", "image rejected"),
        ("5.png", "XML does not parse", "image rejected"),
    ]


def test_voc_file_name_decides_between_two_images_of_one_stem(tmp_path, ingest):
    files = {"1.jpg": jpeg(), "1.png": ONE, "1.xml": voc_xml(CAT, filename="1.png")}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert list(samples(dataset)) == ["1.png"]
    assert rejects_of(dataset) == [("1.jpg", "image without annotation", "skipped")]


def test_voc_numbers_are_kept_as_written_and_size_noted(tmp_path, ingest):
    files = {"1.png": ONE, "1.xml": voc_xml([("cat", 1.5, 2.25, 24, 16)], size=(640, 480))}
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert boxes_of(dataset) == {"1.png": [("cat", 1.5, 2.25, 24, 16, False)]}
    assert rejects_of(dataset) == [("1.png", "declared size is wrong", "noted")]


def test_coco_odd_entries(tmp_path, ingest):
    images = ["1.png", {"id": 1, "file_name": "2.png"}, {"file_name": "3.png"}, 7, {"id": [1], "file_name": "x"}]
    images += [
        {"id": "s", "file_name": "2.png"},
        {"id": 9, "file_name": "./1.png"},
        {"id": 10, "file_name": "gone.png"},
    ]
    annotations = [
        (1, 1, 1, 2, 10, 10),
        (1, 99, 1, 2, 10, 10),
        (77, 1, 1, 2, 10, 10),
        {"image_id": 1.0, "category_id": 1, "bbox": [1, 2, 3]},
        {"image_id": 1, "category_id": 1},
        "no annotation",
        {"image_id": "s", "category_id": 1, "bbox": [3, 4, 5, 6], "iscrowd": 1},
        {"image_id": 1, "category_id": 1, "bbox": [float("nan"), float("inf"), 5, -float("inf")]},
    ]
    categories = [{"id": 1, "name": "a, NaN, b"}, {"id": [], "name": "x"}, {"id": 2}, {"id": 3, "name": [1]}, 5]
    text = coco_json(images, annotations, [{"id": 1, "name": "NaN cat"}, *categories[1:]])
    assert "NaN, Infinity" in text
    dataset = ingest(write_tree(tmp_path / "s", {"c.json": text, "1.png": ONE, "2.png": TWO}))
    assert dataset.classes == ("NaN cat",)
    assert boxes_of(dataset) == {"1.png": [("NaN cat", 1, 2, 11, 12, False)], "2.png": [("NaN cat", 3, 4, 8, 10, True)]}
    assert [row[1:] for row in rejects_of(dataset) if row[0] == "1.png"] == [
        ("annotation without a box", "box rejected"),
        ("annotation without a box", "box rejected"),
        ("box is not finite", "box rejected"),
        ("listed twice", "skipped"),
        ("unknown class", "box rejected"),
    ]
    assert [row for row in rejects_of(dataset) if row[0] != "1.png"] == [
        ("2.png", "image id is taken", "image rejected"),
        ("c.json", "annotation of an unknown image", "box rejected"),
        ("c.json", "annotation of an unknown image", "box rejected"),
        ("c.json image 2", "image entry does not parse", "image rejected"),
        ("c.json image 3", "image entry does not parse", "image rejected"),
        ("c.json image 4", "image entry does not parse", "image rejected"),
        ("gone.png", "file not found", "image rejected"),
    ]


def test_coco_class_order_is_by_id_whatever_the_order_in_the_files(tmp_path, ingest):
    for number, ids in enumerate(([3, 1, 2], [2, 3, 1])):
        categories = {key: f"class {9 - key}" for key in ids}
        source = write_tree(tmp_path / str(number), {"c.json": coco_json(["1.png"], [], categories), "1.png": ONE})
        assert ingest(source).classes == ("class 8", "class 7", "class 6")


@pytest.mark.parametrize("name", ["labels.json", "annotations/instances_val2017.json"])
def test_coco_file_given_directly(name, tmp_path, ingest):
    write_tree(tmp_path / "s", coco_flat() if name == "labels.json" else coco_official())
    dataset = ingest(tmp_path / "s" / name)
    assert ingest.recognised == ("coco", "a .json file")
    assert len(dataset) == (2 if name == "labels.json" else 1)


def test_coco_with_images_elsewhere(tmp_path, ingest):
    write_tree(tmp_path, {"s/c.json": coco_json(["1.png"]), "elsewhere/1.png": ONE})
    assert len(ingest(tmp_path / "s", images=str(tmp_path / "elsewhere"))) == 1


def test_deeppcb_rejects_and_skips(tmp_path, ingest):
    files = deeppcb() | {
        "trainval.txt": "group/1.jpg group/1.txt\ngroup/1.jpg group/1.txt\none two three\ngroup/9.jpg group/9.txt\n",
        "group/1.txt": "1,2,11,12,1\n1 2 3\n1 2 11 12 7\na b c d 1\n1 2 11 12 1.5\n",
        "group/spare.jpg": jpeg(seed=9),
    }
    dataset = ingest(write_tree(tmp_path / "s", files))
    assert rejects_of(dataset) == [
        ("group/1_temp.jpg", "template image", "skipped"),
        ("group/1_test.jpg", "label line does not parse", "box rejected"),
        ("group/1_test.jpg", "label line does not parse", "box rejected"),
        ("group/1_test.jpg", "listed twice", "skipped"),
        ("group/1_test.jpg", "unknown class", "box rejected"),
        ("group/1_test.jpg", "unknown class", "box rejected"),
        ("group/9.jpg", "file not found", "image rejected"),
        ("group/spare.jpg", "not in any list", "skipped"),
        ("trainval.txt line 3", "list line does not parse", "skipped"),
    ]
    assert sum("group/1.txt line 3: type 7 is not 1 to 6" in detail for detail in details_of(dataset)) == 1


def test_class_folders(tmp_path, ingest):
    dataset = ingest(write_tree(tmp_path / "s", class_folders() | {"loose.png": ONE, ".hidden/1.png": ONE}))
    assert dataset.info.task == "classification"
    assert dataset.classes == ("cat", "dog")
    assert {name: dataset.classes[s.annotation.label] for name, s in samples(dataset).items()} == {
        "cat/1.png": "cat",
        "cat/deep/2.png": "cat",
        "dog/1.png": "dog",
    }
    assert rejects_of(dataset) == [("loose.png", "image outside of any class folder", "image rejected")]


def test_a_class_may_be_called_train(tmp_path, ingest):
    dataset = ingest(write_tree(tmp_path / "s", {"train/1.png": ONE, "bus/1.png": TWO}))
    assert dataset.classes == ("bus", "train")


TABLE = {
    "IMAGE_NAME": ["1.png", "1.png", "2.png"],
    "IMAGE_DATA": [ONE, ONE, TWO],
    "CLASS": ["cat", "dog", "dog"],
    "XMIN": [1, 3, 3.5],
    "YMIN": [2, 4, 4],
    "XMAX": [11, 13, 13],
    "YMAX": [12, 14, 14],
}
TABLE_BOXES = {
    "1.png": [CAT_BOX, (*DOG_BOX[:5], False)],
    "2.png": [("dog", 3.5, 4, 13, 14, False)],
}


def as_base64(columns: dict) -> dict:
    return columns | {"IMAGE_DATA": [base64.b64encode(image).decode() for image in columns["IMAGE_DATA"]]}


def write_table(path, columns: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=2)
        case ".arrow":
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
        case ".feather":
            pyarrow.feather.write_feather(table, path)
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".csv", ".jsonl", ".ndjson"])
def test_snowflake_table_one_row_a_box(suffix, tmp_path, ingest):
    binary = suffix in (".parquet", ".arrow", ".feather")
    write_table(tmp_path / f"s/t{suffix}", TABLE if binary else as_base64(TABLE))
    for source in (tmp_path / "s", tmp_path / f"s/t{suffix}"):
        dataset = ingest(source)
        assert ingest.recognised[0] == "table"
        assert boxes_of(dataset) == TABLE_BOXES
        assert dataset.classes == ("cat", "dog")
        assert bytes(samples(dataset)["2.png"].image) == TWO
        check_invariants(dataset)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
@pytest.mark.parametrize("form", ["corners", "boxes", "dicts", "text"])
def test_table_one_row_an_image(suffix, form, tmp_path, ingest):
    columns = as_base64({"IMAGE_NAME": ["1.png", "2.png", "3.png"], "IMAGE_DATA": [ONE, TWO, THREE]})
    columns["labels"] = [["cat", "dog"], ["dog"], []]
    columns["difficult"] = [[0, 0], [0], []]
    boxes = [[[1, 2, 11, 12], [3, 4, 13, 14]], [[3.5, 4, 13, 14]], []]
    if form == "corners":
        columns |= {name: [[box[i] for box in row] for row in boxes] for i, name in enumerate(("x1", "y1", "x2", "y2"))}
    elif form == "dicts":
        columns["bboxes"] = [
            [dict(zip(("xmin", "ymin", "xmax", "ymax"), b, strict=True)) for b in row] for row in boxes
        ]
    else:
        columns["bboxes"] = boxes
    if form == "text" or suffix == ".csv":
        columns = {k: [v if isinstance(v, str) else json.dumps(v) for v in column] for k, column in columns.items()}
    write_table(tmp_path / f"s/t{suffix}", columns)
    dataset = ingest(tmp_path / "s", box_format="xyxy" if form != "corners" else None)
    assert boxes_of(dataset) == TABLE_BOXES | {"3.png": []}


def test_table_without_names_groups_boxes_by_content(tmp_path, ingest):
    """Rows without a box, for images without objects, must not tear the others from their boxes."""
    columns = {key: column for key, column in TABLE.items() if key != "IMAGE_NAME"}
    columns = {key: [*column, THREE if key == "IMAGE_DATA" else None] for key, column in columns.items()}
    write_table(tmp_path / "s/t.parquet", columns)
    dataset = ingest(tmp_path / "s")
    assert [len(sample.annotation) for sample in dataset] == [2, 1, 0]


def test_table_without_names_one_row_an_image_keeps_equal_images_apart(tmp_path, ingest):
    write_table(tmp_path / "s/t.parquet", {"image": [ONE, ONE], "label": [["a"], ["b"]], "bbox": [[[1, 1, 5, 5]]] * 2})
    assert {name: boxes[0][0] for name, boxes in boxes_of(ingest(tmp_path / "s", box_format="xyxy")).items()} == {
        "row-0": "a",
        "row-1": "b",
    }


def test_table_names_are_apart_in_different_splits(tmp_path, ingest):
    columns = TABLE | {"IMAGE_NAME": ["1.png"] * 3, "SPLIT": ["train", "train", "validation"]}
    write_table(tmp_path / "s/t.parquet", columns)
    dataset = ingest(tmp_path / "s")
    assert {name: sample.split for name, sample in samples(dataset).items()} == {
        "train/1.png": "train",
        "val/1.png": "val",
    }
    assert [len(sample.annotation) for sample in dataset] == [2, 1]


def test_table_says_when_one_name_has_two_images(tmp_path, ingest):
    write_table(tmp_path / "a/t.parquet", TABLE | {"IMAGE_NAME": ["1.png"] * 3})
    assert ("1.png", "rows of one name hold different images", "noted") in rejects_of(ingest(tmp_path / "a"))
    write_table(
        tmp_path / "b/t.parquet",
        {"file_name": ["x"] * 2, "image": [ONE, TWO], "bbox": [[[1, 1, 5, 5]]] * 2, "label": [["a"]] * 2},
    )
    dataset = ingest(tmp_path / "b", box_format="xyxy")
    assert ("x", "listed twice", "skipped") in rejects_of(dataset)
    assert [len(sample.annotation) for sample in dataset] == [1]


@pytest.mark.parametrize("labels", [("01", "1", "001"), ("NA", "null", "a")])
def test_csv_cells_are_text(labels, tmp_path, ingest):
    """A guess would make one of "007" and "7", one class of "01" and "1", and nothing of "NA"."""
    rows = ["file_name,image,class,difficult,xmin,ymin,xmax,ymax"]
    cells = zip(("007", "7", "07"), (ONE, TWO, THREE), labels, ("0", "1", "0"), strict=True)
    for name, image, label, difficult in cells:
        rows.append(f"{name},{base64.b64encode(image).decode()},{label},{difficult},1,2,11,12")
    dataset = ingest(write_tree(tmp_path / "s", {"t.csv": "\ufeff" + "\r\n".join(rows)}))
    assert set(dataset.classes) == set(labels)
    assert {name: boxes[0][5] for name, boxes in boxes_of(dataset).items()} == {"007": False, "7": True, "07": False}


@pytest.mark.parametrize("column", ["path", "image"])
def test_table_of_paths_and_classes(column, tmp_path, ingest):
    write_tree(
        tmp_path / "s",
        {"i/1.png": ONE, "i/2.png": TWO, "t.csv": f"{column},label\ni/1.png,cat\ni/2.png,dog\ni/3.png,cat\n"},
    )
    dataset = ingest(tmp_path / "s")
    assert dataset.info.task == "classification"
    assert {name: dataset.classes[s.annotation.label] for name, s in samples(dataset).items()} == {
        "i/1.png": "cat",
        "i/2.png": "dog",
    }
    assert rejects_of(dataset) == [("i/3.png", "file not found", "image rejected")]


def test_hugging_face_images(tmp_path, ingest):
    write_table(
        tmp_path / "s/t.parquet",
        {"image": [{"bytes": ONE, "path": None}, {"bytes": TWO, "path": "x.png"}], "label": [1, 0]},
    )
    dataset = ingest(tmp_path / "s")
    assert sorted(sample.annotation.label for sample in dataset) == [0, 1]
    assert dataset.classes == ("0", "1")


@pytest.mark.parametrize("value", [None, 5, 10**12, 1.5, True, [1, 2], {"a": 1}, "not base64!", b""])
def test_table_image_of_another_kind_is_rejected(value, tmp_path, ingest):
    from sightline.data.formats.table import TableReader

    class Rows:
        columns = ["image", "class", "name"]

        def rows(self, columns):
            yield {"image": ONE, "class": "a", "name": "good"}
            yield {"image": value, "class": "a", "name": "bad"}

    reader = TableReader(Rows(), None)
    found = list(reader.entries())
    assert len(found) == 2
    if hasattr(found[1], "payload"):
        from sightline.data.decode import check_image
        from sightline.errors import ImageError

        with pytest.raises(ImageError):
            check_image(reader.load(found[1]).image)
    else:
        assert found[1].reason == "no image"


def test_tables_of_numbers_sort_classes_by_value(tmp_path, ingest):
    write_table(tmp_path / "s/t.parquet", {"image": [ONE, TWO, THREE], "label": [10, 9, 100]})
    assert ingest(tmp_path / "s").classes == ("9", "10", "100")


def test_database_query(tmp_path, ingest):
    database = tmp_path / "t.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table t (name text, image blob, class text, xmin, ymin, xmax, ymax)")
        rows = list(zip(*(TABLE[key] for key in TABLE), strict=True))
        connection.executemany("insert into t values (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    dataset = ingest(f"sqlite:///{database}", query="select * from t")
    assert boxes_of(dataset) == TABLE_BOXES
    with pytest.raises(ConfigError, match="a database needs a query"):
        ingest(f"sqlite:///{database}")


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"a": [1]}, {}, "no image or path column among a: say --columns image=COLUMN"),
        (TABLE, {"columns": {"image": "x"}}, "--columns image=x: the table has IMAGE_NAME"),
        (TABLE, {"columns": {"x": "CLASS"}}, "'x' is not one of image"),
        ({"image": [ONE]}, {}, "no class names: say --columns class=COLUMN"),
    ],
)
def test_table_columns_that_are_not_there(columns, settings, message, tmp_path, ingest):
    write_table(tmp_path / "s/t.parquet", columns)
    with pytest.raises((ConfigError, FormatError), match=message):
        ingest(tmp_path / "s", **settings)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv", "t.jsonl", "c.json", "d.yaml"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage", b"PAR1PAR1", b"[" * 1000])
def test_files_that_are_not_what_their_name_says(name, content, tmp_path, ingest):
    source = write_tree(tmp_path / "s", {name: content})
    with pytest.raises(FormatError):
        ingest(source / name)


def test_nothing_there(tmp_path, ingest):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"no annotations recognised in .* which holds nothing: name the format"):
        ingest(tmp_path / "empty")
    with pytest.raises(NotFoundError, match="does not exist"):
        ingest(tmp_path / "missing")
    for format in ("voc", "coco", "yolo", "folder", "table"):
        with pytest.raises(FormatError):
            ingest(tmp_path / "empty", format=format)
    with pytest.raises(FormatError, match="no images found"):
        ingest(tmp_path / "empty", format="deeppcb")


def test_empty_image_files(tmp_path, ingest):
    dataset = ingest(write_tree(tmp_path / "s", {"a/1.png": b"", "a/2.png": ONE, "b/notes.txt": "x"}))
    assert rejects_of(dataset) == [("a/1.png", "empty file", "image rejected")]
    with pytest.raises(TooManyRejectedError, match=r"none of the 1 images .* 1 x empty file"):
        ingest(write_tree(tmp_path / "t", {"a/1.png": b""}))


NAMES = [
    "plain.png",
    "with space.png",
    "new\nline.png",
    "ünïcödé 图.png",
    "e\u0301.png",
    "\u00e9.png",
    "UPPER.PNG",
    "upper.png",
]
NAMES += [
    "x" * 251 + ".png",
    "quote'\".png",
    "%41.png",
    "a\\b.png",
    "tab\t.png",
    "ctrl\x01.png",
    "star*?.png",
    "-rf.png",
]


def test_all_names_are_kept_apart(tmp_path, ingest):
    files = {f"{folder}/{name}": png(seed=number) for number, name in enumerate(NAMES) for folder in ("a", "b")}
    source = write_tree(tmp_path / "s", files)
    raw = os.fsencode(source / "a") + b"/\xff\xfe.png"
    with open(raw, "wb") as file:
        file.write(ONE)
    dataset = ingest(source)
    found = samples(dataset)
    assert len(found) == len({sample.image_id for sample in dataset}) == len(files) + 1
    for name, content in files.items():
        assert bytes(found[name].image) == content
    assert "a/\\udcff\\udcfe.png" in found
    assert rejects_of(dataset) == []


def test_names_that_are_not_utf8_in_lists_and_labels(tmp_path, ingest):
    source = write_tree(tmp_path / "s", {"data.yaml": "names: [cat]\ntrain: train.txt\n", "labels/x": ""})
    (source / "images").mkdir()
    for folder, suffix, content in ((b"images", b"png", ONE), (b"labels", b"txt", YOLO_CAT.encode())):
        with open(b"/".join([os.fsencode(source), folder, b"\xff." + suffix]), "wb") as file:
            file.write(content)
    (source / "train.txt").write_bytes(b"images/\xff.png\n")
    dataset = ingest(source)
    assert [len(sample.annotation) for sample in dataset] == [1]


ORDER = """
import os, sys
shuffle = sys.argv[2] == "shuffle"
real_scandir, real_listdir = os.scandir, os.listdir
class Shuffled:
    def __init__(self, path): self.it = real_scandir(path)
    def __enter__(self): return iter(sorted(self.it, key=lambda e: e.name[::-1], reverse=True))
    def __exit__(self, *a): self.it.close()
if shuffle:
    os.scandir = Shuffled
    os.listdir = lambda path: sorted(real_listdir(path), reverse=True)
import tempfile, sightline
info = sightline.ingest(sys.argv[1], "x", workspace=tempfile.mkdtemp(), workers=1)
print(info.classes, info.content_hash)
"""


@pytest.mark.parametrize(
    "layout", [voc_beside, coco_roboflow, yolo_classes_txt, class_folders], ids=lambda f: f.__name__
)
def test_order_depends_on_names_only(layout, tmp_path):
    source = write_tree(tmp_path / "s", layout())
    found = {run_python(ORDER, source, how, PYTHONHASHSEED=seed) for how, seed in (("plain", "1"), ("shuffle", "2"))}
    assert len(found) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_sources_are_never_modified(layout, tmp_path, ingest):
    source = write_tree(tmp_path / "s", layout())

    def state():
        return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in source.rglob("*")}

    before = state()
    ingest(source)
    assert state() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_voc_looks_for_classes_in_as_many_processes_as_ingest_has(tmp_path, ingest, monkeypatch, workers):
    started = []

    def run_here(function, tasks, count):
        started.append(count)
        return (function(*task) for task in tasks)

    monkeypatch.setattr("sightline.data.formats.voc._SCAN_CHUNK", 1)
    monkeypatch.setattr("sightline.data.parallel._run_in_processes", run_here)
    assert ingest(write_tree(tmp_path / "s", voc_split()), workers=workers).classes == ("cat", "dog")
    assert started == [2] * (workers == 2)
