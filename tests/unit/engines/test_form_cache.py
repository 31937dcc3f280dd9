"""Compiled forms: complete or absent, checked when they are read, safe with several writers."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sightline.engines.form_cache import load_form, private_directory, store_form
from sightline.engines.onnx_form import onnx_form
from sightline.errors import StorageError
from sightline.models.factory import make_model

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


def test_forms_are_kept_where_only_their_user_can_write(tmp_path: Path) -> None:
    cache = tmp_path / "workspace" / "compiled" / "user"
    assert private_directory(cache) == cache
    assert [stat.S_IMODE(place.stat().st_mode) for place in (cache, *cache.parents[:2])] == [0o700] * 3
    assert private_directory(cache) == cache


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(StorageError, match=r"are not used: it has mode .* Remove it"):
        private_directory(tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == mode
    model = make_model("nano", num_classes=2, size=64)
    with pytest.raises(StorageError, match="are not used"):
        onnx_form(model.source("0" * 64), cache=tmp_path / "cache")


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to("theirs")
    with pytest.raises(StorageError, match="are not used"):
        private_directory(tmp_path / "cache")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, -1)
    with pytest.raises(StorageError, match="belongs to user 12345"):
        private_directory(tmp_path / "cache")


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="compiled form"):
        store_form(tmp_path / "file" / "onnx-1", FILES)


def test_a_whole_form_is_not_replaced(place: Path) -> None:
    store_form(place, FILES)
    store_form(place, {"other": b""})
    assert load_form(place) == FILES
