"""What the four numbers of a box in a table are: said by the user, determined by the data, or refused."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import boxes_of, png, write_tree

from sightline.data.formats.table import _BoxStore
from sightline.data.formats.table_boxes import box_to_xyxy, decide_format
from sightline.errors import ConfigError, FormatError

SIZE = (100, 80)
XYXY = [[10, 20, 60, 50], [70, 5, 95, 75]]
AS_FORMAT = {
    "xyxy": XYXY,
    "xywh": [[10, 20, 50, 30], [70, 5, 25, 70]],
    "cxcywh": [[35, 35, 50, 30], [82.5, 40, 25, 70]],
}
EXPECTED = [("cat", 10, 20, 60, 50, False), ("dog", 70, 5, 95, 75, False)]


@pytest.mark.parametrize("box_format", AS_FORMAT)
def test_every_format_becomes_corners(box_format):
    assert [box_to_xyxy(box, box_format) for box in AS_FORMAT[box_format]] == XYXY


@pytest.mark.parametrize(
    "box",
    [
        {"xmin": 10, "ymin": 20, "xmax": 60, "ymax": 50},
        {"X": 10, "Y": 20, "Width": 50, "Height": 30},
        {"left": 10, "top": 20, "w": 50, "h": 30},
        {"cx": 35, "cy": 35, "w": 50, "h": 30},
    ],
)
@pytest.mark.parametrize("box_format", AS_FORMAT)
def test_names_decide(box, box_format):
    assert box_to_xyxy(box, box_format) == XYXY[0]


@pytest.mark.parametrize("box", [None, 5, "text", [], [1, 2, 3], [1, 2, 3, 4, 5], {}, {"xmin": 1}, [[1, 2, 3, 4]] * 4])
def test_what_is_no_box_is_nan(box):
    assert all(map(math.isnan, box_to_xyxy(box, "xyxy")))


@pytest.mark.parametrize("box_format", AS_FORMAT)
def test_the_data_determine_the_format_when_no_other_fits(box_format):
    boxes = [*AS_FORMAT[box_format], [math.nan] * 4, "no box", {"x": 1, "y": 2, "w": 3, "h": 4}]
    assert decide_format([(box, SIZE) for box in boxes], "bbox") == box_format


@pytest.mark.parametrize(
    ("boxes", "size", "possible"),
    [
        ([[10, 20, 30, 40]], None, "xyxy or xywh"),
        ([[30, 40, 10, 20]], None, "xywh or cxcywh"),
        ([[30, 40, 50, 60]], (1000, 1000), "xyxy or xywh or cxcywh"),
        ([[30, 40, 10, 20], [10, 20, 900, 700]], SIZE, "none of them for every box"),
    ],
)
def test_what_the_data_do_not_determine_is_refused(boxes, size, possible):
    with pytest.raises(FormatError, match=rf"such as .{boxes[0][0]}, .*possible: {possible}.*--box-format xyxy"):
        decide_format([(box, size) for box in boxes], "bbox")


def test_sizes_are_not_needed_where_the_numbers_are_enough():
    """A width above its left edge is no corner, and half of it would not fit to the left of a center."""
    assert decide_format([([5, 50, 40, 20], None), ([50, 3, 20, 40], None)], "bbox") == "xywh"


def test_a_table_without_boxes_needs_no_format():
    assert decide_format([], "bbox") is None
    assert decide_format([({"xmin": 1, "ymin": 1, "xmax": 2, "ymax": 2}, None)], "bbox") is None


IMAGE = png(100, 80)


def write_table(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"image_id": ["a"], "image": [IMAGE]} | columns), path)
    return path.parent


@pytest.mark.parametrize("box_format", AS_FORMAT)
def test_the_option_says_what_a_bbox_column_is(box_format, tmp_path, ingest):
    source = write_table(tmp_path / "s/t.parquet", bbox=[AS_FORMAT[box_format]], category=[["cat", "dog"]])
    assert boxes_of(ingest(source, box_format=box_format)) == {"a": EXPECTED}


def test_a_bbox_column_alone_is_not_guessed(tmp_path, ingest):
    source = write_table(tmp_path / "s/t.parquet", bbox=[[[10, 20, 50, 30]]], category=[["cat"]])
    with pytest.raises(FormatError, match=r"column 'bbox' holds boxes such as \[10, 20, 50, 30\].*--box-format"):
        ingest(source)


@pytest.mark.parametrize("box_format", AS_FORMAT)
def test_sizes_in_the_table_determine_it(box_format, tmp_path, ingest):
    columns = {"bbox": [AS_FORMAT[box_format]], "category": [["cat", "dog"]], "width": [100], "height": [80]}
    dataset = ingest(write_table(tmp_path / "s/t.parquet", **columns))
    assert boxes_of(dataset) == {"a": EXPECTED}
    assert ingest.recognised == ("table", f"t.parquet; boxes as {box_format}")


@pytest.mark.parametrize("label", ["category", "category_id", "label"])
@pytest.mark.parametrize("form", ["list of structs", "struct of lists", "text"])
def test_hugging_face_objects(form, label, tmp_path, ingest):
    names = [3, 7] if label == "category_id" else ["cat", "dog"]
    objects = {"id": [1, 2], "bbox": AS_FORMAT["xywh"], label: names, "iscrowd": [0, 1]}
    if form == "list of structs":
        objects = [dict(zip(objects, values, strict=True)) for values in zip(*objects.values(), strict=True)]
    value = json.dumps(objects) if form == "text" else objects
    source = write_table(tmp_path / "s/t.parquet", objects=[value])
    with pytest.raises(FormatError, match=r"column 'objects' holds boxes .*possible: xywh or cxcywh.*--box-format"):
        ingest(write_table(tmp_path / "few/t.parquet", objects=[{"bbox": [[30, 40, 10, 20]], "category": ["cat"]}]))
    (found,) = boxes_of(ingest(source, box_format="xywh")).values()
    classes = [str(name) for name in names]
    assert found == [(classes[0], *EXPECTED[0][1:5], False), (classes[1], *EXPECTED[1][1:5], True)]


def test_one_row_a_box_with_a_flat_bbox(tmp_path, ingest):
    lines = ["path,bbox,label", 'a.png,"[10, 20, 50, 30]",cat', 'a.png,"[70, 5, 25, 70]",dog']
    source = write_tree(tmp_path / "s", {"a.png": IMAGE, "t.csv": "\n".join(lines)})
    assert boxes_of(ingest(source, box_format="xywh")) == {"a.png": EXPECTED}


def test_the_option_is_refused_where_it_means_nothing(tmp_path, ingest):
    corners = {"xmin": [1], "ymin": [1], "xmax": [5], "ymax": [5], "label": ["cat"]}
    with pytest.raises(ConfigError, match="no column of this table holds boxes of four numbers"):
        ingest(write_table(tmp_path / "s/t.parquet", **corners), box_format="xywh")
    with pytest.raises(ConfigError, match="format 'folder' defines what its numbers are"):
        ingest(write_tree(tmp_path / "f", {"cat/1.png": IMAGE}), box_format="xywh")


def test_a_reader_is_collected_in_any_thread() -> None:
    """As it is where it is part of a cycle, with an exception that holds it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_BoxStore().__del__).result()
