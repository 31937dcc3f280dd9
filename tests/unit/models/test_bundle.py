"""A bundle is complete or absent, and not a byte of it can change unnoticed."""

import builtins
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from failing_disk import ALWAYS, FailingDisk
from sightline.data.manifest import write_manifest
from sightline.engines.opening import open_predictor
from sightline.errors import DamagedError, NotFoundError, StorageError, TrainingError
from sightline.models.bundle import Bundle, describe, open_bundle, save_bundle
from sightline.models.factory import make_model
from support.inference import settings_of

FILES = ["weights.safetensors", "model.json", "README.md", "picture-00.jpg", "manifest.json"]


def test_it_says_what_the_model_is(bundle: Bundle) -> None:
    found = open_bundle(bundle.path)
    assert found == bundle
    assert sorted(file.name for file in bundle.path.iterdir()) == sorted(FILES)
    values = json.loads((bundle.path / "model.json").read_text())
    assert values["format"] == 2
    assert (values["model"], values["task"], values["licence"]) == ("nano", "detection", "Apache-2.0")
    assert values["preprocessing"]["size"] == 64
    assert (values["preprocessing"]["square"], values["preprocessing"]["reduced_decode"]) == (False, True)
    assert values["metrics"] == {"score": 0.5, "map": 0.25, "map50": 0.5}
    assert values["per_class"] == [{"ap50": 0.5}, {"ap50": 0.75}, {"count": 7.0}]
    assert {"sightline", "torch", "python"} <= values["versions"].keys()


def test_the_weights_come_back(bundle: Bundle) -> None:
    torch.manual_seed(0)
    made = make_model("nano", num_classes=3, size=64).state_dict() | {"net.class_map.bias": torch.zeros(4)}
    assert all(torch.equal(tensor, made[name]) for name, tensor in bundle.load().state_dict().items())
    assert bundle.load(size=96).size == 96


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_byte_is_refused_wherever_it_is(bundle: Bundle, file: str) -> None:
    data = (bundle.path / file).read_bytes()
    step = max(1, len(data) // 40)
    for place in [*range(0, len(data), step), len(data) - 1]:
        for bit in (1, 32):
            (bundle.path / file).write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            with pytest.raises(DamagedError):
                open_bundle(bundle.path)
    (bundle.path / file).write_bytes(data)
    assert open_bundle(bundle.path) == bundle


def test_every_byte_of_the_manifest_counts(bundle: Bundle) -> None:
    file = bundle.path / "manifest.json"
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedError):
            open_bundle(bundle.path)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_or_torn_file_is_refused(bundle: Bundle, file: str) -> None:
    data = (bundle.path / file).read_bytes()
    (bundle.path / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedError):
        open_bundle(bundle.path)
    (bundle.path / file).unlink()
    with pytest.raises((DamagedError, NotFoundError)):
        open_bundle(bundle.path)


def test_a_file_that_is_not_listed_is_refused_and_a_hidden_one_is_nobodys(bundle: Bundle) -> None:
    (bundle.path / ".DS_Store").write_bytes(b"left by a desktop")
    assert open_bundle(bundle.path) == bundle
    (bundle.path / "extra.pkl").write_bytes(b"payload")
    with pytest.raises(DamagedError, match=r"'extra\.pkl', which its manifest does not list"):
        open_bundle(bundle.path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/file", "a\\b", "", ".hidden", "x\0y"])
def test_a_manifest_names_files_of_its_own_directory_only(bundle: Bundle, name: str) -> None:
    files = json.loads((bundle.path / "manifest.json").read_text())["files"]
    files[name] = files["README.md"]
    text = json.dumps({"files": {key: files[key] for key in sorted(files)}}, indent=1)
    (bundle.path / "manifest.json").write_text(text)
    with pytest.raises(DamagedError, match="is not as it was written"):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "has format 3; this version reads formats 1 to 2: use a version of Sightline as new as"),
        ({"format": None}, "has format None"),
        ({"surprise": 1}, "surprise: Extra inputs"),
        ({"classes": []}, "classes:"),
        ({"classes": "abc"}, "classes:"),
        ({"score_threshold": 7}, "score_threshold:"),
        ({"metrics": {"map": float("nan")}}, "metrics"),
    ],
)
def test_a_description_of_another_kind(bundle: Bundle, change: dict[str, object], message: str) -> None:
    values = json.loads((bundle.path / "model.json").read_text())
    (bundle.path / "model.json").write_text(json.dumps(values | change))
    (bundle.path / "manifest.json").unlink()
    write_manifest(bundle.path)
    with pytest.raises(DamagedError, match=message):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "nanno"}, "'nanno' is not known"),
        ({"classes": ["a", "b"]}, "size mismatch"),
        ({"model": "ssdlite"}, "Missing key"),
    ],
)
def test_weights_of_another_model(bundle: Bundle, change: dict[str, object], message: str) -> None:
    values = json.loads((bundle.path / "model.json").read_text())
    (bundle.path / "model.json").write_text(json.dumps(values | change))
    (bundle.path / "manifest.json").unlink()
    write_manifest(bundle.path)
    with pytest.raises(DamagedError, match=message):
        open_bundle(bundle.path).load()


@pytest.mark.parametrize(("name", "square"), [("nano", False), ("ssdlite", True), ("resnet18", True)])
def test_a_bundle_of_the_first_format_is_used_as_detect_used_it(tmp_path: Path, name: str, square: bool) -> None:
    """On the smallest canvas that the network takes, and with large JPEGs at reduced scale; it said only "square"."""
    model = make_model(name, num_classes=2, size=64)
    bundle = save_bundle(tmp_path / name, model.state_dict(), describe(model, name=name, classes=("a", "b")), {})
    assert bundle.info.preprocessing.square is square
    values = json.loads((bundle.path / "model.json").read_text())
    values["format"], values["preprocessing"]["square"] = 1, True
    del values["preprocessing"]["reduced_decode"]
    (bundle.path / "model.json").write_text(json.dumps(values))
    (bundle.path / "manifest.json").unlink()
    write_manifest(bundle.path)
    old = open_bundle(bundle.path)
    preprocessor = open_predictor(old, settings_of(old)).preprocessor
    assert preprocessor == open_predictor(bundle, settings_of(bundle)).preprocessor
    assert (preprocessor.letterbox.square, preprocessor.reduced_decode) == (square, True)


def test_preprocessing_that_this_version_does_not_do(bundle: Bundle) -> None:
    values = json.loads((bundle.path / "model.json").read_text())
    values["preprocessing"]["fill"] = 0
    (bundle.path / "model.json").write_text(json.dumps(values))
    (bundle.path / "manifest.json").unlink()
    write_manifest(bundle.path)
    with pytest.raises(DamagedError, match="wants images prepared as"):
        open_bundle(bundle.path).load()


def test_a_bundle_is_never_absent_while_another_takes_its_place(bundle: Bundle) -> None:
    weights = load_file(bundle.path / "weights.safetensors")
    ended, missing = threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            if not (bundle.path / "model.json").exists():
                missing.append(True)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(20):
        info = bundle.info.model_copy(update={"score_threshold": number / 100})
        save_bundle(bundle.path, weights, info, {})
    ended.set()
    watcher.join()
    assert not missing


def test_two_writers_of_one_bundle_do_not_share_a_partial_directory(bundle: Bundle) -> None:
    weights = load_file(bundle.path / "weights.safetensors")

    def save(number: int) -> Bundle:
        info = bundle.info.model_copy(update={"score_threshold": number / 100})
        return save_bundle(bundle.path, weights, info, {})

    with ThreadPoolExecutor(4) as pool:
        saved = list(pool.map(save, range(12)))
    assert open_bundle(bundle.path).hash in {one.hash for one in saved}
    assert [path.name for path in bundle.path.parent.iterdir()] == ["bundle"]


def test_a_bundle_whose_writer_died_while_it_was_replaced_is_found(bundle: Bundle) -> None:
    bundle.path.rename(bundle.path.with_name(f".bundle.{'0' * 16}.old"))
    assert open_bundle(bundle.path) == bundle


def test_the_same_model_again_stays_the_bundle_it_is(bundle: Bundle) -> None:
    weights = load_file(bundle.path / "weights.safetensors")
    later = bundle.info.model_copy(update={"versions": {"torch": "99"}, "run": None})
    assert save_bundle(bundle.path, weights, later, {}) == bundle
    better = bundle.info.model_copy(update={"metrics": {"score": 0.9}})
    assert save_bundle(bundle.path, weights, better, {}).hash != bundle.hash
    assert [place.name for place in bundle.path.parent.iterdir()] == ["bundle"]


def test_weights_that_are_not_finite_are_never_written(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not finite"):
        save_bundle(tmp_path / "new", {"x": torch.tensor([1, float("inf")])}, bundle.info, {})
    assert not (tmp_path / "new").exists()


def test_the_hash_is_that_of_the_bytes_wherever_they_lie(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copytree(bundle.path, tmp_path / "elsewhere")
    assert open_bundle(tmp_path / "elsewhere").hash == bundle.hash


OPENING = [(os, "stat", "model.json"), (Path, "read_text", "model.json"), (builtins, "open", "weights.safetensors")]


@pytest.mark.parametrize("read", OPENING, ids=lambda read: read[1])
@pytest.mark.usefixtures("impatient")
def test_a_disk_that_fails_is_asked_again_and_is_no_damage(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, read: tuple[Any, str, str]
) -> None:
    disk = FailingDisk(monkeypatch, *read, failures=2)
    assert open_bundle(bundle.path).hash == bundle.hash
    assert disk.failed == 2
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=r"cannot read '.*Input/output error"):
        open_bundle(bundle.path)


@pytest.mark.usefixtures("impatient")
def test_weights_on_a_disk_that_fails_are_no_model_of_another_version(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk(monkeypatch, Path, "read_bytes", "weights.safetensors", failures=2)
    expected = load_file(bundle.path / "weights.safetensors")
    for name, tensor in bundle.load().state_dict().items():
        assert torch.equal(tensor, expected[name])
    assert disk.failed == 2
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=r"cannot read '.*weights\.safetensors': .*Input/output error"):
        bundle.load()
