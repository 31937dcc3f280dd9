"""Compiled forms: complete or absent, checked when they are read, safe with several writers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sightline.engines.form_cache import load_form, store_form
from sightline.errors import StorageError

FILES = {"features": b"first" * 1000, "box_head": b"second"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "key" / "onnx-1"


def test_what_is_stored_is_loaded(place: Path) -> None:
    assert load_form(place) is None
    store_form(place, FILES)
    assert load_form(place) == FILES
    assert [found.name for found in place.parent.iterdir()] == ["onnx-1"]


@pytest.mark.parametrize("file", ["features", "box_head", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_noticed_and_replaced(place: Path, file: str, damage: str) -> None:
    store_form(place, FILES)
    content = (place / file).read_bytes()
    match damage:
        case "flip":
            (place / file).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "cut":
            (place / file).write_bytes(content[:-1])
        case "remove":
            (place / file).unlink()
    assert load_form(place) is None
    store_form(place, FILES)
    assert load_form(place) == FILES
    assert [found.name for found in place.parent.iterdir()] == ["onnx-1"]


@pytest.mark.parametrize("damaged", [False, True])
def test_many_may_store_at_once(place: Path, damaged: bool) -> None:
    if damaged:
        place.mkdir(parents=True)
        (place / "features").write_bytes(b"torn")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store_form(place, FILES), range(32)))
    assert load_form(place) == FILES
    assert [found.name for found in place.parent.iterdir()] == ["onnx-1"]


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="compiled form"):
        store_form(tmp_path / "file" / "onnx-1", FILES)


def test_a_whole_form_is_not_replaced(place: Path) -> None:
    store_form(place, FILES)
    store_form(place, {"other": b""})
    assert load_form(place) == FILES
