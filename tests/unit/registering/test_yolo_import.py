"""Files of strangers become a bundle, or are refused with a reason; no code runs and no other file is opened."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from yolo_files import NAMES, NOTED, make_scene, make_yolo, write_yolo

import sightline
from sightline.data.manifest import write_manifest
from sightline.errors import ConfigError, DamagedError, FormatError, NotFoundError
from sightline.model_api import find_bundle
from sightline.models.bundle import open_bundle

Change = Callable[[onnx.ModelProto], None]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_bundle_says_what_the_file_said(tmp_path: Path) -> None:
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), tmp_path / "bundle")
    assert found == open_bundle(tmp_path / "bundle")
    info = found.info
    assert (info.model, info.task, info.classes, info.licence) == ("yolo-onnx", "detection", NAMES, "AGPL-3.0")
    assert (info.size, info.preprocessing.multiple, info.preprocessing.centred) == (128, 32, True)
    assert sorted(file.name for file in found.path.iterdir()) == [
        "README.md",
        "manifest.json",
        "model.json",
        "model.onnx",
    ]
    assert "AGPL" in (found.path / "README.md").read_text()
    kept = onnx.load(found.path / "model.onnx")
    assert (kept.graph.input[0].name, kept.graph.input[0].type.tensor_type.elem_type) == ("images", TensorProto.UINT8)
    assert {entry.key: entry.value for entry in kept.metadata_props} == NOTED, "the file's own notes stay with it"


@pytest.mark.parametrize(("imgsz", "size"), [("320", 320), ("[96, 160]", 160), ("(64, 64)", 64), ("large", 640)])
def test_the_size_it_was_trained_at_is_taken(tmp_path: Path, imgsz: str, size: int) -> None:
    file = write_yolo(tmp_path / "yolo.onnx", noted={**NOTED, "imgsz": imgsz})
    assert sightline.import_model(file, tmp_path / "bundle").info.size == size


def test_it_can_be_registered(tmp_path: Path) -> None:
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), "colours", workspace=tmp_path / "ws")
    assert find_bundle("colours", workspace=tmp_path / "ws").hash == found.hash
    (answer,) = sightline.load_model("colours", workspace=tmp_path / "ws", threads=1).predict(
        make_scene(128, 128, {(32, 64): 1})
    )
    assert answer.names == ["green"]


@pytest.mark.parametrize(
    ("content", "name"),
    [("names: [a, b, c]", "n.yaml"), ("names: {2: c, 0: a, 1: b}", "n.yml"), ("a\nb\n\nc\n", "n.txt"), (None, "a,b,c")],
)
def test_names_that_are_given_go_before_those_of_the_file(tmp_path: Path, content: str | None, name: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
        name = str(tmp_path / name)
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), tmp_path / "bundle", classes=name)
    assert found.info.classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("noted", "given", "licence"),
    [({}, None, "unknown"), ({}, "MIT", "MIT"), (NOTED, None, "AGPL-3.0"), (NOTED, " Enterprise ", "Enterprise")],
)
def test_licences(tmp_path: Path, noted: dict[str, str], given: str | None, licence: str) -> None:
    file = write_yolo(tmp_path / "yolo.onnx", noted=noted)
    found = sightline.import_model(file, tmp_path / "bundle", classes=",".join(NAMES), licence=given)
    assert found.info.licence == licence
    assert found.info.size == (640 if not noted else 128)


def test_half_precision_and_inputs_of_other_names(tmp_path: Path) -> None:
    file = write_yolo(tmp_path / "yolo.onnx", kind=TensorProto.FLOAT16, name="x")
    found = sightline.import_model(file, tmp_path / "bundle")
    model = sightline.load_model(found.path, engine="onnxruntime", threads=1, workspace=tmp_path)
    (answer,) = model.predict(make_scene(128, 128, {(32, 64): 2}))
    assert (answer.names, answer.boxes.tolist()) == (["blue"], [[32, 64, 64, 96]])


def in_another_file(tensor: TensorProto) -> None:
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")


def external_weight(model: onnx.ModelProto) -> None:
    in_another_file(model.graph.initializer[0])


def external_note_alone(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def external_constant(model: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    in_another_file(tensor)
    model.graph.node.append(helper.make_node("Constant", [], ["constant"], value=tensor))


def branch_with(node: onnx.NodeProto) -> onnx.NodeProto:
    inner = helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    return helper.make_node("If", ["condition"], ["z"], then_branch=inner, else_branch=inner)


def external_in_a_branch(model: onnx.ModelProto) -> None:
    tensor = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    in_another_file(tensor)
    model.graph.node.append(branch_with(helper.make_node("Constant", [], ["y"], value=tensor)))


def foreign_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Run", ["means"], ["more"], domain="com.evil"))
    model.opset_import.append(helper.make_opsetid("com.evil", 1))


def foreign_in_a_branch(model: onnx.ModelProto) -> None:
    model.graph.node.append(branch_with(helper.make_node("Run", [], ["y"], domain="com.microsoft")))


def own_function(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)
    )


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def dangling(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "nowhere"


ATTACKS: list[tuple[Change, str]] = [
    (external_weight, "in another file, and files that a model refers to are never opened"),
    (external_note_alone, "in another file"),
    (external_constant, "in another file"),
    (external_in_a_branch, "in another file"),
    (foreign_operator, r"operator 'Run' of 'com\.evil'"),
    (foreign_in_a_branch, r"operator 'Run' of 'com\.microsoft'"),
    (own_function, "functions or training steps of its own"),
    (unknown_operator, "not a valid ONNX model"),
    (dangling, "not a valid ONNX model"),
]


@pytest.mark.parametrize(("change", "message"), ATTACKS)
def test_a_malicious_file_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    model = make_yolo()
    change(model)
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    (tmp_path / "yolo.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match=message):
        sightline.import_model(tmp_path / "yolo.onnx", tmp_path / "in" / "bundle")
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(("change", "message"), ATTACKS)
def test_a_bundle_that_somebody_rewrote_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), tmp_path / "bundle")
    model = onnx.load(found.path / "model.onnx")
    change(model)
    (found.path / "model.onnx").write_bytes(model.SerializeToString())
    (found.path / "manifest.json").unlink()
    write_manifest(found.path)
    with pytest.raises(DamagedError, match=message):
        sightline.load_model(found.path, workspace=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "b"]},
        {"preprocessing": {"size": 128, "multiple": 32, "square": True, "upscale": True, "centred": False}},
        {"preprocessing": {"size": 128, "multiple": 0, "square": True, "upscale": True, "centred": True}},
        {"model": "nano"},
    ],
)
def test_a_description_of_another_model_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), tmp_path / "bundle")
    values = json.loads((found.path / "model.json").read_text())
    (found.path / "model.json").write_text(json.dumps(values | change))
    (found.path / "manifest.json").unlink()
    write_manifest(found.path)
    with pytest.raises(DamagedError):
        open_bundle(found.path).source()


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("kind", ["pickle", "truncated", "empty", "text"])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, kind: str) -> None:
    file, whole = tmp_path / "yolo.onnx", make_yolo().SerializeToString()
    match kind:
        case "pickle":
            torch.save(Payload(tmp_path / "ran"), file)
        case "truncated":
            file.write_bytes(whole[: len(whole) // 2])
        case "empty":
            file.write_bytes(b"")
        case "text":
            file.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FormatError, match=r"not an ONNX file|not a valid ONNX model"):
        sightline.import_model(file, tmp_path / "bundle")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "bundle").exists()


def test_every_cut_is_refused(tmp_path: Path) -> None:
    whole = make_yolo().SerializeToString()
    for length in range(0, len(whole), 97):
        (tmp_path / "yolo.onnx").write_bytes(whole[:length])
        with pytest.raises((FormatError, ConfigError)):
            sightline.import_model(tmp_path / "yolo.onnx", tmp_path / "bundle")


def other_output(axes: list[int | str]) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("output0", TensorProto.FLOAT, axes))

    return change


def second_output(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("means", TensorProto.FLOAT, ["b", 3, "h", "w"]))


def logits(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Identity"


def one_size_in_truth(model: onnx.ModelProto) -> None:
    next(one for one in model.graph.initializer if one.name == "shape").CopyFrom(
        helper.make_tensor("shape", TensorProto.INT64, [3], [0, 7, 16])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_output(["batch", 300, 6]), "gives output0 batch x 300 x 6; expected batch x 7 x places"),
        (other_output(["batch", "places", 8, 1]), "expected batch x 7 x places"),
        (second_output, "gives output0 .*, means "),
        (logits, "scores that are not between 0 and 1"),
        (one_size_in_truth, "does not run on 2 images of 96 x 64 pixels, which its input admits"),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, change: Change, message: str) -> None:
    model = make_yolo()
    change(model)
    (tmp_path / "yolo.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match=message):
        sightline.import_model(tmp_path / "yolo.onnx", tmp_path / "bundle")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noted": NOTED | {"task": "segment"}}, FormatError, "for the task 'segment'"),
        ({"noted": NOTED | {"end2end": "True"}}, FormatError, "suppresses boxes by itself"),
        ({"noted": {}}, ConfigError, "does not say what its classes are called: give --names"),
        ({"noted": NOTED | {"names": "['a', 'b']"}}, FormatError, "expected batch x 6 x places"),
        ({"height": 128, "width": 64}, FormatError, "images of 64 x 128 pixels only"),
        ({"height": 100, "width": 100}, FormatError, "no multiple of its stride"),
        ({"kind": TensorProto.DOUBLE}, FormatError, "expected images"),
    ],
)
def test_models_that_are_no_such_detectors(
    tmp_path: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    file = write_yolo(tmp_path / "yolo.onnx", **options)
    with pytest.raises(error, match=message):
        sightline.import_model(file, tmp_path / "bundle")


def test_a_bundle_is_not_imported_again(tmp_path: Path) -> None:
    found = sightline.import_model(write_yolo(tmp_path / "yolo.onnx"), tmp_path / "bundle")
    with pytest.raises(FormatError, match="takes 8-bit images"):
        sightline.import_model(found.path / "model.onnx", tmp_path / "again")


def test_wrong_arguments(tmp_path: Path) -> None:
    file = write_yolo(tmp_path / "yolo.onnx", height=128, width=128)
    with pytest.raises(ConfigError, match="an ONNX file brings its own network"):
        sightline.import_model(file, tmp_path / "bundle", model="nano")
    with pytest.raises(ConfigError, match="takes 128 only"):
        sightline.import_model(file, tmp_path / "bundle", size=64)
    with pytest.raises(NotFoundError, match="is not there"):
        sightline.import_model(tmp_path / "no.onnx", tmp_path / "bundle")
