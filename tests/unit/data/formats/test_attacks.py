"""Annotation files that try to take memory, time, files or the process."""

import json
import pickle
import sys
import time
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import attempt, boxes_of, coco_json, details_of, png, rejects_of, run_python, voc_xml, write_tree

from sightline.config import SourceConfig
from sightline.detection.sources.factory import open_source
from sightline.errors import FormatError
from sightline.workspace import Workspace

GOOD = {"good.png": png(), "good.xml": voc_xml([("a", 1, 2, 11, 12)])}
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
BODY = "<annotation><object><name>{}</name></object></annotation>"

XML = {
    "billion-laughs": (f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]>' + BODY.format("&l11;"), "forbidden XML"),
    "quadratic": (f'<!DOCTYPE a [<!ENTITY l "{"x" * 50_000}">]>' + BODY.format("&l;" * 50_000), "forbidden XML"),
    "external-entity": ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + BODY.format("&x;"), "forbidden XML"),
    "parameter-entity": (
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1:1/x"> %x;]>' + BODY.format("a"),
        "forbidden XML",
    ),
    "external-dtd": ('<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd">' + BODY.format("a"), "forbidden XML"),
    "dtd": ("<!DOCTYPE a [<!ELEMENT a ANY>]>" + BODY.format("a"), "forbidden XML"),
    "unknown-encoding": ('<?xml version="1.0" encoding="nonsense"?>' + BODY.format("a"), "XML does not parse"),
    "wrong-encoding": (
        b'<?xml version="1.0" encoding="utf-8"?>' + BODY.format("\xff").encode("latin-1"),
        "XML does not parse",
    ),
    "multi-byte-encoding": ('<?xml version="1.0" encoding="shift_jis"?>' + BODY.format("a"), None),
    "nul": (BODY.format("a\0b"), "XML does not parse"),
    "deep": ("<a>" * 300_000 + "</a>" * 300_000, None),
    "deep-unclosed": ("<a>" * 300_000, "XML does not parse"),
    "huge-attribute": (f'<annotation x="{"y" * 20_000_000}"/>', None),
    "utf-16": (voc_xml([("a", 1, 2, 11, 12)]).encode("utf-16"), None),
    "bom": ("\ufeff" + voc_xml([("a", 1, 2, 11, 12)]), None),
}


@pytest.mark.parametrize("attack", XML)
def test_xml(attack, tmp_path, ingest):
    text, reason = XML[attack]
    begin = time.monotonic()
    dataset = ingest(write_tree(tmp_path / "s", GOOD | {"x.png": png(seed=1), "x.xml": text}))
    assert time.monotonic() - begin < 60, "it is refused at once; what an attack aims at takes hours"
    assert dataset.classes == ("a",)
    if reason:
        assert ("x.png", reason, "image rejected") in rejects_of(dataset)
        assert list(boxes_of(dataset)) == ["good.png"]
    else:
        assert boxes_of(dataset)["good.png"] == [("a", 1, 2, 11, 12, False)]
    assert not any("root:" in detail for detail in details_of(dataset))
    if attack in ("utf-16", "bom"):
        assert boxes_of(dataset)["x.png"] == [("a", 1, 2, 11, 12, False)]


LIMITED = """
import resource, sys, tempfile
import sightline, sightline.api, sightline.data.formats
from sightline.errors import SightlineError
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    info = sightline.ingest(sys.argv[1], "x", workspace=tempfile.mkdtemp(), workers=1)
    print(info.num_images, info.num_boxes, info.rejected)
except SightlineError as error:
    print(type(error).__name__, error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(
    "text",
    [
        '{"images": ' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"images": ' + '{"a":' * 200_000 + "1" + "}" * 200_000 + "}",
        '{"x": "]]]]\\"]]]]", "images": ' + '["]]]]",' * 100_000,
    ],
)
def test_deep_json_is_refused_in_little_memory(text, tmp_path):
    write_tree(tmp_path / "s", {"c.json": text})
    *output, megabytes = run_python(LIMITED, tmp_path / "s/c.json", timeout=60).strip().split("\n")
    assert "FormatError" in output[0]
    assert "nested more than 100 levels deep" in output[0]
    assert int(megabytes) < 150


def test_brackets_in_strings_are_not_nesting(tmp_path, ingest):
    name = "[" * 300 + '"\\' + "{" * 300
    dataset = ingest(write_tree(tmp_path / "s", {"c.json": coco_json(["1.png"], [], {1: name}), "1.png": png()}))
    assert dataset.classes == (name,)


def test_large_coco_file_is_streamed(tmp_path):
    """100 MB of annotations, standing before the images they belong to."""
    segmentation = json.dumps([[float(i) + 0.5 for i in range(120)]])
    images, per_image = 100, 1200
    source = write_tree(tmp_path / "s", {f"{number}.png": png(seed=number % 7) for number in range(images)})
    with open(source / "instances_train.json", "w") as file:
        file.write('{"categories": [{"id": 1, "name": "a"}], "annotations": [')
        for number in range(images * per_image):
            comma = "," if number else ""
            file.write(
                f'{comma}{{"id": {number}, "image_id": {number % images}, "category_id": 1, "iscrowd": 0, '
                f'"bbox": [1, 2, 10, 10], "segmentation": {segmentation}}}'
            )
        entries = [{"id": n, "file_name": f"{n}.png", "width": 24, "height": 16} for n in range(images)]
        file.write(f'], "images": {json.dumps(entries)}}}')
    assert (source / "instances_train.json").stat().st_size > 95_000_000
    output, megabytes = run_python(LIMITED, source, timeout=200).strip().split("\n")
    assert output == f"{images} {images * per_image} {{}}"
    assert int(megabytes) < 250


YAML = {
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9))
    + "names: *j\n",
    "laughs-path": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9))
    + "names: [q]\npath: *j\ntrain: *j\n",
    "recursive": "names: &a [*a]\n",
    "python-object": "names: !!python/object/apply:os.system ['touch PWNED']\n",
    "python-name": "names: [!!python/name:os.system , a]\n",
    "deep": "names: " + "[" * 5000 + "]" * 5000,
    "empty-int": "names: [!!int '']\n",
    "bad-bool": "names: [!!bool x]\n",
    "bad-timestamp": "names: [!!timestamp x]\n",
    "bad-date": "names: [2001-99-99]\n",
    "merge": "<<: 3\nnames: [a]\n",
    "unhashable": "? [a]\n: b\nnames: [a]\n",
    "duplicate-anchor": "names: [a\n",
    "surrogate": 'names: ["\\ud800"]\ntrain: "\\ud800"\n',
    "nul": 'names: [a]\ntrain: "x\\0y"\nfold: "x\\0y"\n',
    "number-keys": "names: {0: a, 1: b}\n5: images\n",
    "binary": "names: [!!binary aGVsbG8=]\n",
}


@pytest.mark.parametrize("attack", YAML)
def test_yaml(attack, tmp_path, ingest, monkeypatch):
    source = write_tree(tmp_path / "s", {"data.yaml": YAML[attack], "images/1.png": png()})
    monkeypatch.chdir(tmp_path)
    begin = time.monotonic()
    dataset, error = attempt(ingest, source / "data.yaml")
    assert dataset is None or all(len(name) < 100 for name in dataset.classes)
    assert len(str(error)) < 1000
    assert time.monotonic() - begin < 5
    assert not (tmp_path / "PWNED").exists()


class Evil:
    def __reduce__(self):
        import os

        return os.system, ("touch PWNED",)


class PickledScalar(pa.ExtensionScalar):
    def as_py(self, **_):
        return pickle.loads(self.value.as_py())


class PickledType(pa.ExtensionType):
    """As Ray's data library registers one when it is imported."""

    def __init__(self):
        super().__init__(pa.binary(), "test.pickled_object")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()

    def __arrow_ext_scalar_class__(self):
        return PickledScalar


def test_cells_of_a_registered_extension_type_are_not_unpickled(tmp_path, ingest, monkeypatch):
    """Its scalars unpickle themselves; images and classes are read as the bytes that are stored."""
    monkeypatch.chdir(tmp_path)
    pa.register_extension_type(PickledType())
    try:
        evil = pa.ExtensionArray.from_storage(PickledType(), pa.array([pickle.dumps(Evil())]))
        good = pa.ExtensionArray.from_storage(PickledType(), pa.array([png()]))
        nested = pa.ListArray.from_arrays([0, 1], evil)
        table = pa.table({"image": good, "class": ["a"], "path": evil, "labels": nested})
        pq.write_table(table, tmp_path / "t.parquet")
        assert pq.read_schema(tmp_path / "t.parquet").field("path").type == PickledType()
        assert len(ingest(tmp_path / "t.parquet", columns={"image": "image", "class": "class"})) == 1
        source, _ = open_source(str(tmp_path / "t.parquet"), SourceConfig(image="image"), Workspace(tmp_path))
        assert [source.read(item) for item in source.items()] == [png()]
    finally:
        pa.unregister_extension_type("test.pickled_object")
    assert not list(tmp_path.rglob("PWNED"))


def test_pickle_in_a_parquet_file_is_not_run(tmp_path, ingest, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = pickle.dumps(Evil())
    plain = pa.table({"image": [png()], "class": ["a"]})
    for number, extension in enumerate((b"arrow.py_extension_type", b"ray.data.arrow_pickled_object", b"unknown")):
        metadata = {b"ARROW:extension:name": extension, b"ARROW:extension:metadata": evil}
        fields = [
            plain.schema.field("image").with_metadata(metadata),
            plain.schema.field("class").with_metadata(metadata),
        ]
        schema = pa.schema(fields, metadata={b"pandas": evil, b"evil": evil})
        table = pa.Table.from_arrays(plain.columns, schema=schema)
        path = tmp_path / f"s{number}/t.parquet"
        path.parent.mkdir()
        pq.write_table(table, path)
        with pa.ipc.new_file(path.with_suffix(".arrow"), schema) as file:
            file.write_table(table)
        assert len(ingest(path)) == 1
        # Ray's own type, where another test has loaded it, claims that these cells are stored as something else.
        is_known = extension == b"ray.data.arrow_pickled_object" and "ray.data" in sys.modules
        with pytest.raises(FormatError, match="cannot be read as a table") if is_known else nullcontext():
            assert len(ingest(path.with_suffix(".arrow"))) == 1
        assert not list(tmp_path.rglob("PWNED"))
