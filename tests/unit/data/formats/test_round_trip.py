"""What is exported comes back: boxes to 0.01 pixel, labels, ignore flags, splits and bytes."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from builders import Ingest, boxes_of, coco_json, png, samples, write_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sightline
from sightline.data.formats.factory import make_writer
from sightline.data.formats.writing import ExportDirectory
from sightline.errors import ConfigError, DamagedError, ExistsError
from sightline.structures import Annotation, Sample

FORMATS = ("voc", "coco", "yolo")
HOSTILE = [
    "<script>alert(1)</script>",
    "a & b",
    "quote'\"",
    "comma, colon: #",
    "ünïcödé 图 🐈",
    "two\nlines",
    "yes",
    "1",
    "-",
    "null",
]
HOSTILE += ["{{x}}", "../../up", "a/b", "[1]", "NaN", "%s", "`x`", "a\tb", "😀" * 40]
NAMES = [
    "1.png",
    "a b.png",
    "x.png.png",
    "a.b.c.png",
    "ü 图.png",
    "semi;colon.png",
    "a#b%20.png",
    "train.png",
    " lead.png",
]
NAMES += ["a&b<c>.png", "new\nline.png", "trail 1.png", "y" * 240 + ".png", "A.png", "a.png", "no-suffix", "x.JPEG"]


def make_source(root: Path, rows: list, classes: list[str]) -> Path:
    """A table, which can hold anything: rows are (folder/name, split, boxes)."""
    lines = []
    for number, (name, split, boxes) in enumerate(rows):
        (root / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{number}.png").write_bytes(png(90, 70, seed=number))
        columns = [list(column) for column in zip(*boxes, strict=True)] or [[], [], []]
        row = {"file_name": name, "path": f"{number}.png", "split": split, "bboxes": columns[0]}
        lines.append(json.dumps(row | {"labels": [classes[i] for i in columns[1]], "ignore": columns[2]}))
    (root / "t.jsonl").write_text("\n".join(lines) + "\n")
    return root


def described(dataset) -> list:
    """Everything but names, which may change, sorted by content."""
    found = boxes_of(dataset)
    return sorted(
        (bytes(sample.image), sample.split, sample.width, sample.height, found[name])
        for name, sample in samples(dataset).items()
    )


def assert_same(before: list, after: list) -> None:
    assert len(before) == len(after)
    for one, two in zip(before, after, strict=True):
        assert one[:4] == two[:4]
        assert [(row[0], row[5]) for row in one[4]] == [(row[0], row[5]) for row in two[4]]
        if one[4]:
            difference = np.array([row[1:5] for row in one[4]]) - np.array([row[1:5] for row in two[4]])
            assert np.abs(difference).max() <= 0.01


def test_areas_of_coco_are_kept_and_written_back(tmp_path, ingest):
    """Those of segments, which are smaller than the boxes; one annotation has none, another nonsense."""
    given = [50.5, None, "large", 0.0, 12]
    notes = [
        {"id": n, "image_id": 1, "category_id": 1, "bbox": [n, 2, 8, 10], "iscrowd": 0}
        | ({} if a is None else {"area": a})
        for n, a in enumerate(given, 1)
    ]
    content = coco_json(["1.png", "2.png"], [*notes, (2, 1, 1, 1, 5, 5)])
    source = write_tree(tmp_path / "source", {"c.json": content, "1.png": png(seed=1), "2.png": png(seed=2)})
    first = ingest(source, split="train=1")
    expected = {"1.png": [50.5, 80.0, 80.0, 0.0, 12.0], "2.png": None}

    def areas(dataset) -> dict:
        kept = ((dataset[i].file_name, dataset.annotation(i).areas) for i in range(len(dataset)))
        return {Path(name).name: None if found is None else found.tolist() for name, found in kept}

    assert areas(first) == expected
    sightline.export_dataset(first.location, tmp_path / "out", format="coco")
    written = json.loads((tmp_path / "out/annotations/instances_train.json").read_text())["annotations"]
    assert [note["area"] for note in written] == [50.5, 80.0, 80.0, 0.0, 12.0, 25.0]
    assert areas(ingest(tmp_path / "out")) == expected | {"2.png": [25.0]}
    content = content.replace("50.5", "60.5")
    (source / "c.json").write_text(content)
    assert ingest(source, split="train=1").info.content_hash != first.info.content_hash


@st.composite
def rows(draw):
    def box():
        x0, y0 = draw(st.floats(0, 85, width=32)), draw(st.floats(0, 65, width=32))
        width, height = draw(st.floats(0.25, 60)), draw(st.floats(0.25, 60))
        corners = [x0, y0, min(x0 + width, 90), min(y0 + height, 70)]
        return corners, draw(st.integers(0, 2)), draw(st.booleans())

    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    found = []
    for number, name in enumerate(names):
        boxes = [box() for _ in range(draw(st.integers(0, 3)))]
        found.append(
            (f"{draw(st.sampled_from('ab'))}/{name}", draw(st.sampled_from(["train", "val", "test", "fold-1"])), boxes)
        )
        if number == 0:
            found[0] = (found[0][0], found[0][1], [*boxes, ([1, 2, 30, 40], 0, False)])
    return found


@pytest.mark.parametrize("format", FORMATS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_round_trip(format, data, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("trip")
    ingest = Ingest(tmp_path / "workspace")
    classes = data.draw(st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3, unique=True))
    original = ingest(make_source(tmp_path / "source", data.draw(rows()), classes), box_format="xyxy")
    out = tmp_path / "out"
    count = sightline.export_dataset(original.location, out, format=format)
    assert count == len(original)
    again = ingest(out)
    assert ingest.recognised[0] == format
    assert_same(described(original), described(again))
    if format != "voc":
        assert again.classes == original.classes
    assert not [path for path in tmp_path.iterdir() if path.name not in ("source", "workspace", "out")]


@pytest.mark.parametrize("format", FORMATS)
def test_round_trip_of_every_hostile_name(format, tmp_path, ingest):
    """All names and classes at once, in two folders, so that base names meet."""
    names = [f"{folder}/{name}" for name in NAMES for folder in ("a", "b")]
    rows = [
        (name, ("train", "val")[i % 2], [([1, 2, 30, 40], i % len(HOSTILE), i % 3 == 0)])
        for i, name in enumerate(names)
    ]
    original = ingest(make_source(tmp_path / "source", rows, HOSTILE), box_format="xyxy")
    sightline.export_dataset(original.location, tmp_path / "out", format=format)
    assert_same(described(original), described(ingest(tmp_path / "out")))
    exported = [path.name for path in (tmp_path / "out").rglob("*") if path.suffix.lower() in (".png", ".jpeg")]
    assert len({name.casefold() for name in exported}) == len(names)


@pytest.mark.parametrize("name", ["\x00", "a\x01b", " a", "a\r", "\n"])
def test_class_names_that_xml_cannot_hold_are_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="cannot be written as VOC XML: export as coco or yolo"):
        make_writer("voc", ExportDirectory(tmp_path / "out"), ("fine", name))


def test_split_that_yaml_needs_for_itself(tmp_path, ingest):
    original = ingest(
        make_source(tmp_path / "s", [("1", "names", [([1, 2, 30, 40], 0, False)])], ["a"]), box_format="xyxy"
    )
    with pytest.raises(ConfigError, match="split 'names' has a name that means something else"):
        sightline.export_dataset(original.location, tmp_path / "out", format="yolo")


@pytest.mark.parametrize("format", FORMATS)
def test_export_never_overwrites(format, tmp_path, ingest):
    original = ingest(
        make_source(tmp_path / "source", [("1.png", "train", [([1, 2, 30, 40], 0, False)])], ["a"]), box_format="xyxy"
    )
    write_tree(tmp_path / "out", {"precious.txt": "x"})
    with pytest.raises(ExistsError, match="exists and is not empty: export into a new directory"):
        sightline.export_dataset(original.location, tmp_path / "out", format=format)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious.txt"]
    with pytest.raises(ExistsError):
        sightline.export_dataset(original.location, tmp_path / "out/precious.txt", format=format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("split", ["../../evil", "/tmp/sightline-evil", ".."])
def test_a_forged_split_does_not_write_outside(format, split, tmp_path):
    writer = make_writer(format, ExportDirectory(tmp_path / "deep/er/out"), ("a",))
    annotation = Annotation(np.zeros((0, 4), np.float32), np.zeros(0, np.int32), np.zeros(0, np.bool_))
    with contextlib.suppress(DamagedError):
        writer.add(Sample("id", "x.png", png(), 24, 16, split, annotation))
        writer.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "deep/er/out" not in str(path)]
    assert not Path("/tmp/sightline-evil").exists()
    if split == "../../evil":
        with pytest.raises(DamagedError, match="outside of"):
            ExportDirectory(tmp_path / "out").write("images/../../x", b"")


def test_names_that_meet_only_by_the_id_that_was_added(tmp_path):
    directory = ExportDirectory(tmp_path / "out")
    annotation = Annotation(np.zeros((0, 4), np.float32), np.zeros(0, np.int32), np.zeros(0, np.bool_))
    samples = [
        Sample(i, name, png(), 24, 16, "train", annotation)
        for i, name in (("1", "a.png"), ("2", "a-3.png"), ("3", "A.png"))
    ]
    names = [directory.unique_name(sample) for sample in samples]
    assert len({name.casefold() for name in names}) == 3


def test_classification_has_no_boxes_to_write(tmp_path, ingest):
    dataset = ingest(write_tree(tmp_path / "s", {"a/1.png": png(), "b/1.png": png(seed=1)}))
    with pytest.raises(ConfigError, match="has no boxes to write as coco"):
        sightline.export_dataset(dataset.location, tmp_path / "out", format="coco")


def test_split_names_that_are_no_names_are_rejected(tmp_path, ingest):
    rows = [("1.png", "train", [([1, 2, 30, 40], 0, False)]), ("2.png", "../../up", []), ("3.png", "a b", [])]
    dataset = ingest(make_source(tmp_path / "source", rows, ["a"]), box_format="xyxy")
    assert list(dataset.info.splits) == ["train"]
    assert dataset.info.rejected["image rejected"] == {"split name is not usable": 2}
