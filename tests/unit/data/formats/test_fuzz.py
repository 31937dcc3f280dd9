"""Every parser with arbitrary input: only errors that a user can act on, and datasets that hold together."""

import json
import math
from pathlib import Path

import pytest
from builders import Ingest, attempt, check_invariants, png, write_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.data.decode import read_header
from sightline.data.formats.table import TableReader
from sightline.data.formats.yolo import parse_line
from sightline.data.record import Entry
from sightline.data.verdict import judge_boxes
from sightline.errors import ImageError, SightlineError

IMAGE = png()
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
NUMBER = st.integers() | st.floats() | st.integers(-5, 30) | st.floats(-5, 30)
SCALAR = (
    st.none()
    | st.booleans()
    | NUMBER
    | st.text(max_size=8)
    | st.sampled_from(["1.png", "a", "train", "../x", "/etc/passwd"])
)
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def try_ingest(root: Path, files: dict, **settings) -> None:
    source = write_tree(root / "source", files | {"1.png": IMAGE, "images/1.png": IMAGE})
    dataset, error = attempt(Ingest(root / "workspace"), source, **settings)
    if dataset:
        check_invariants(dataset)
    else:
        assert str(error)
        assert not list((root / "workspace").glob("datasets/*"))


@pytest.fixture
def fresh(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("fuzz")


TAGS = st.sampled_from(
    [
        "annotation",
        "object",
        "name",
        "bndbox",
        "xmin",
        "ymin",
        "xmax",
        "ymax",
        "size",
        "width",
        "height",
        "filename",
        "difficult",
        "part",
    ]
)
XML = st.recursive(
    st.text(max_size=6) | NUMBER.map(str),
    lambda inner: st.tuples(TAGS, st.lists(inner, max_size=5)).map(lambda t: f"<{t[0]}>{''.join(t[1])}</{t[0]}>"),
    max_leaves=25,
)
OBJECT = st.tuples(st.text(max_size=4) | st.just("a"), NUMBER, NUMBER, NUMBER, NUMBER).map(
    lambda t: (
        f"<object><name>{t[0]}</name><bndbox><xmin>{t[1]}</xmin><ymin>{t[2]}</ymin><xmax>{t[3]}</xmax><ymax>{t[4]}</ymax></bndbox></object>"
    )
)


@FUZZ
@given(
    st.lists(XML | OBJECT, max_size=6),
    st.sampled_from(["<annotation>{}</annotation>", "{}", "<?xml version='1.0'?><a>{}"]),
)
def test_voc(fresh, parts, frame):
    good = "<annotation><object><name>a</name></object></annotation>"
    text = frame.format("".join(parts)).encode("utf-8", "surrogatepass")
    try_ingest(fresh(), {"1.xml": text, "images/1.xml": good}, format="voc")


IMAGES = st.fixed_dictionaries(
    {}, optional={"id": SCALAR | JSON, "file_name": SCALAR | JSON, "width": SCALAR, "height": SCALAR}
)
BOXES = st.fixed_dictionaries(
    {},
    optional={
        "image_id": st.just(1) | SCALAR | JSON,
        "category_id": st.just(1) | SCALAR | JSON,
        "bbox": st.lists(NUMBER, min_size=4, max_size=4) | JSON,
        "iscrowd": SCALAR,
    },
)
CATEGORIES = st.fixed_dictionaries({}, optional={"id": SCALAR | JSON, "name": SCALAR | JSON})


@FUZZ
@given(
    st.lists(IMAGES | JSON, max_size=4) | JSON,
    st.lists(BOXES | JSON, max_size=5) | JSON,
    st.lists(CATEGORIES | JSON, max_size=3) | JSON,
)
def test_coco(fresh, images, annotations, categories):
    if isinstance(images, list):
        images = [{"id": 1, "file_name": "1.png", "width": 24, "height": 16}, *images]
    if isinstance(categories, list):
        categories = [{"id": 1, "name": "a"}, *categories]
    text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    try_ingest(fresh(), {"c.json": text}, format="coco")


@FUZZ
@given(st.binary(max_size=60), st.integers(0, 200), st.booleans())
def test_coco_bytes(fresh, garbage, place, cut):
    text = b'{"images": [{"id": 1, "file_name": "1.png"}], "annotations": [], "categories": [{"id": 1, "name": "a"}]}'
    text = text[:place] + garbage + (b"" if cut else text[place:])
    try_ingest(fresh(), {"c.json": text}, format="coco")


@settings(max_examples=500, deadline=None)
@given(st.lists(NUMBER.map(str) | st.text(max_size=5), max_size=9).map(" ".join) | st.text(max_size=40))
def test_yolo_line(line):
    box, error = attempt(parse_line, line, 3, "line 1")
    if error:
        assert error.reason in ("label line does not parse", "unknown class")
    else:
        assert 0 <= box.label < 3
        assert all(isinstance(value, float) for value in (box.x0, box.y0, box.x1, box.y1))


YAML_VALUE = (
    st.text(max_size=10)
    | JSON.map(json.dumps)
    | st.sampled_from(["images", "images/1.png", "list.txt", "..", "/", "."])
)


@FUZZ
@given(
    st.dictionaries(st.sampled_from(["names", "train", "val", "path", "nc", "fold", "x y"]), YAML_VALUE, max_size=4),
    st.binary(max_size=30),
    st.binary(max_size=40),
)
def test_yolo(fresh, yaml, listed, label):
    text = "".join(f"{key}: {value}\n" for key, value in ({"names": "[a, b]"} | yaml).items())
    files = {
        "data.yaml": text.encode("utf-8", "surrogatepass"),
        "list.txt": b"images/1.png\n" + listed,
        "labels/1.txt": b"0 .5 .5 .5 .5\n" + label,
    }
    try_ingest(fresh(), files, format="yolo")


@FUZZ
@given(
    st.binary(max_size=40),
    st.binary(max_size=40) | st.lists(NUMBER, max_size=6).map(lambda v: " ".join(map(str, v)).encode()),
)
def test_deeppcb(fresh, listed, label):
    files = {"trainval.txt": b"1.png 1.txt\n" + listed, "test.txt": listed, "1.txt": b"1 2 11 12 1\n" + label}
    try_ingest(fresh(), files, format="deeppcb")


class Rows:
    def __init__(self, columns, rows):
        self.columns, self._rows = columns, rows

    def rows(self, columns):
        return ({name: row[name] for name in columns if name in row} for row in self._rows)


CELL = (
    SCALAR
    | JSON
    | st.binary(max_size=10)
    | st.just(IMAGE)
    | st.sampled_from(["a", "[1, 2]", "[[1,2,3,4]]", "[" * 3000])
)
COLUMNS = (
    "image",
    "path",
    "file_name",
    "split",
    "class",
    "xmin",
    "ymin",
    "xmax",
    "ymax",
    "boxes",
    "ignore",
    "width",
    "height",
)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sets(st.sampled_from(COLUMNS), min_size=2))
def test_table_rows(data, columns):
    rows = data.draw(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(columns, CELL)), min_size=1, max_size=5))
    try:
        reader = TableReader(Rows(sorted(columns), rows), None)
        entries = list(reader.entries())
    except SightlineError:
        return
    assert len({entry.name for entry in entries if isinstance(entry, Entry)}) == len(
        [e for e in entries if isinstance(e, Entry)]
    )
    for entry in entries:
        entry.name.encode()
        if isinstance(entry, Entry):
            try:
                loaded = reader.load(entry)
                annotation, _ = judge_boxes(entry.name, loaded, read_header(loaded.image))
            except ImageError:
                continue
            assert all(math.isfinite(value) for value in annotation.boxes.flat)
            assert all(0 <= label < len(reader.classes) for label in annotation.labels)


@FUZZ
@given(st.sampled_from(["t.csv", "t.jsonl"]), st.text(max_size=60), st.lists(SCALAR, min_size=3, max_size=3))
def test_text_tables(fresh, name, garbage, cells):
    if name == "t.csv":
        text = "path,class,xmin,ymin,xmax,ymax\n1.png,a,1,2,11,12\n" + ",".join(map(str, cells)) + "\n" + garbage
    else:
        row = {"path": "1.png", "label": "a"}
        text = (
            json.dumps(row)
            + "\n"
            + json.dumps(dict(zip(("path", "label", "split"), cells, strict=True)))
            + "\n"
            + garbage
        )
    try_ingest(fresh(), {name: text.encode("utf-8", "surrogatepass")}, format="table")
