"""Whatever a source names, nothing outside of it is opened, and nothing in it that would block."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import coco_json, details_of, jpeg, png, rejects_of, samples, voc_xml, write_tree

from sightline.data.storage import Folder
from sightline.errors import FormatError, ImageError, SightlineError, TooManyRejectedError

SECRET = jpeg(31, 17, seed=99)
GOOD = png(24, 16)

_opened: list[str] = []
_recording = False


def _audit(event: str, arguments: tuple) -> None:
    if _recording and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Paths that Python opens or lists in this test."""
    global _recording
    if _audit not in _hooks:
        sys.addaudithook(_audit)
        _hooks.append(_audit)
    _opened.clear()
    _recording = True
    yield _opened
    _recording = False


_hooks: list[Callable] = []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source folder with a secret image, its label and its annotation beside it."""
    write_tree(
        tmp_path / "outside",
        {
            "secret.jpg": SECRET,
            "secret.txt": "0 0.5 0.5 0.5 0.5\n",
            "images/secret.jpg": SECRET,
            "images/a.jpg": SECRET,
        },
    )
    write_tree(
        tmp_path / "outside",
        {
            "voc/secret.xml": voc_xml([("secret", 1, 1, 5, 5)]),
            "coco.json": coco_json(["secret.jpg"], [], {1: "secret"}),
        },
    )
    return tmp_path / "source"


def link(path: Path, to: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    return path


def voc(root: Path, name: str) -> None:
    xml = voc_xml([("a", 1, 1, 5, 5)], filename=name.replace("&", "&amp;"))
    write_tree(root, {"Annotations/other.xml": xml, "Annotations/good.xml": voc_xml([("a", 1, 1, 5, 5)])})
    write_tree(root, {"JPEGImages/good.png": GOOD})


def coco(root: Path, name: str) -> None:
    write_tree(root, {"images/good.png": GOOD, "annotations/instances_train.json": coco_json(["good.png", name])})


def yolo_list(root: Path, name: str) -> None:
    write_tree(root, {"data.yaml": "names: [a]\ntrain: train.txt\n", "train.txt": f"images/good.png\n{name}\n"})
    write_tree(root, {"images/good.png": GOOD})


def yolo_yaml(root: Path, name: str) -> None:
    folder = json.dumps(name.rpartition("/")[0] or name)
    write_tree(root, {"data.yaml": f"names: [a]\ntrain: images\nval: {folder}\n", "images/good.png": GOOD})


def yolo_yaml_path(root: Path, name: str) -> None:
    base = json.dumps(name.rpartition("/")[0] or name)
    write_tree(root, {"data.yaml": f"path: {base}\nnames: [a]\ntrain: images\nval: .\n", "images/good.png": GOOD})


def deeppcb_image(root: Path, name: str) -> None:
    write_tree(
        root, {"trainval.txt": f"good.png good.txt\n{name} good.txt\n", "good.png": GOOD, "good.txt": "1 1 5 5 1"}
    )


def deeppcb_label(root: Path, name: str) -> None:
    label = name.removesuffix(".jpg") + ".txt"
    write_tree(root, {"trainval.txt": f"good.png good.txt\nb.png {label}\n", "good.png": GOOD, "b.png": GOOD})
    write_tree(root, {"good.txt": "1 1 5 5 1"})


def table(root: Path, name: str) -> None:
    write_tree(root, {"good.png": GOOD})
    columns = {"path": ["good.png", name], "class": ["a", "a"], "xmin": [1, 1], "ymin": [1, 1], "xmax": [5, 5]}
    pq.write_table(pa.table(columns | {"ymax": [5, 5]}), root / "t.parquet")


SOURCES = {
    f.__name__: f for f in (voc, coco, yolo_list, yolo_yaml, yolo_yaml_path, deeppcb_image, deeppcb_label, table)
}
NAMES = {
    "parent": "../outside/images/secret.jpg",
    "far-parent": "../" * 30 + "{outside}/images/secret.jpg",
    "through": "x/../../outside/images/secret.jpg",
    "absolute": "/{outside}/images/secret.jpg",
    "double-slash": "//{outside}/images/secret.jpg",
    "windows-parent": "..\\outside\\images\\secret.jpg",
    "windows-drive": "C:\\outside\\images\\secret.jpg",
    "windows-share": "\\\\server\\share\\secret.jpg",
    "link-to-file": "link.jpg",
    "link-to-folder": "folder/secret.jpg",
    "link-chain": "chain/secret.jpg",
    "url": "file:///{outside}/images/secret.jpg",
    "passwd": "../../../../../../../../etc/passwd",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", SOURCES)
def test_nothing_outside_is_opened(kind, name, root, ingest, opened):
    outside = root.parent / "outside"
    SOURCES[kind](root, NAMES[name].replace("{outside}", str(outside).lstrip("/")))
    link(root / "link.jpg", outside / "images/secret.jpg")
    link(root / "link.txt", outside / "secret.txt")
    link(root / "folder", outside / "images")
    link(root / "chain", "folder")
    dataset = ingest(root)
    assert [bytes(sample.image) for sample in dataset] == [GOOD] * len(dataset)
    assert len(dataset) >= 1
    touched = [path for path in opened if path.startswith((str(outside), "/etc/passwd")) or "/../" in path]
    assert touched == []
    assert any(reason in str(rejects_of(dataset)) for reason in ("leads out", "not followed", "not found", "no image"))


@pytest.mark.parametrize("name", ["../outside/images/secret.jpg", "/etc/passwd.jpg", "C:\\x.jpg", "..\\..\\x.jpg"])
@pytest.mark.parametrize("kind", ["voc", "coco", "yolo_list", "deeppcb_image", "table"])
def test_refusal_names_the_reason(kind, name, root, ingest):
    SOURCES[kind](root, name)
    dataset = ingest(root)
    assert ("path leads out of the source", "image rejected") in [row[1:] for row in rejects_of(dataset)]


@pytest.mark.parametrize("kind", ["coco", "yolo_list", "table"])
def test_nul_in_a_name(kind, root, ingest):
    SOURCES[kind](root, "a\0b.jpg")
    dataset = ingest(root)
    assert len(dataset) == 1
    assert "path leads out of the source" in [reason for _, reason, _ in rejects_of(dataset)]


def test_links_within_the_source_are_read(root, ingest):
    write_tree(
        root, {"store/1.png": GOOD, "store/2.png": png(24, 16, seed=5), "data.yaml": "names: [a]\ntrain: images\n"}
    )
    link(root / "images/one.png", "../store/1.png")
    link(root / "images/two.png", root / "store/2.png")
    assert set(samples(ingest(root))) == {"images/one.png", "images/two.png"}


def test_a_source_that_is_itself_a_link_is_read(root, ingest):
    yolo_list(root, "images/good.png")
    assert len(ingest(link(root.parent / "shortcut", root))) == 1


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("annotations", "coco-folder"),
        ("instances_train.json", "coco.json"),
        ("t.parquet", "t.parquet"),
        ("x.xml", "x.xml"),
    ],
)
def test_linked_annotation_files_outside_are_not_found(name, target, root, ingest, opened):
    outside = root.parent / "outside"
    write_tree(outside, {"coco-folder/instances_train.json": coco_json(["good.png"], [], {1: "secret"})})
    write_tree(outside, {"x.xml": voc_xml([("secret", 1, 1, 5, 5)])})
    pq.write_table(pa.table({"image": [SECRET], "class": ["secret"]}), outside / "t.parquet")
    write_tree(root, {"good.png": GOOD})
    link(root / name, outside / target)
    opened.clear()
    with pytest.raises(SightlineError, match="no annotations recognised"):
        ingest(root)
    for format in ("coco", "table", "voc"):
        with pytest.raises(SightlineError):
            ingest(root, format=format)
    assert not [path for path in opened if path.startswith(str(outside))]


def test_a_file_that_the_user_names_may_be_a_link(root, ingest):
    pq.write_table(pa.table({"image": [SECRET], "class": ["a"]}), root.parent / "outside/t.parquet")
    assert len(ingest(link(root / "t.parquet", root.parent / "outside/t.parquet"))) == 1


@pytest.mark.parametrize("kind", [*SOURCES, "folder"])
def test_pipes_and_devices_do_not_block(kind, root, ingest, opened):
    if kind == "folder":
        write_tree(root, {"a/good.png": GOOD})
    else:
        SOURCES[kind](root, "pipe.jpg")
    for name in (
        "pipe.jpg",
        "a/pipe.jpg",
        "images/pipe.jpg",
        "pipe.txt",
        "good.json",
        "Annotations/pipe.xml",
        "x.yaml",
    ):
        (root / name).parent.mkdir(exist_ok=True)
        os.mkfifo(root / name)
    link(root / "images/zero.jpg", "/dev/zero")
    dataset = ingest(root, **({"format": "folder"} if kind == "folder" else {}))
    assert all(bytes(sample.image) == GOOD for sample in dataset)
    assert len(dataset) >= 1
    assert not [path for path in opened if "/pipe." in path or path.startswith("/dev/zero")]


def test_a_huge_file_is_refused_unread(root, ingest):
    yolo_list(root, "images/huge.png")
    with open(root / "images/huge.png", "wb") as file:
        file.truncate(3 << 30)
    dataset = ingest(root)
    assert ("images/huge.png", "file not readable", "image rejected") in rejects_of(dataset)
    assert any("3221225472 bytes" in detail for detail in details_of(dataset))


def test_deep_folders(root, ingest):
    deep = root / "a"
    deep.mkdir(parents=True)
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    write_tree(root, {"a/good.png": GOOD, "b/good.png": GOOD})
    try:
        assert len(ingest(root, format="folder")) == 2
    finally:
        os.system(f"rm -rf '{root}'")  # shutil.rmtree would recurse too deep


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../../x", "/x", "\\x", "..\\x", "C:\\x", "c:/x", "x\0y", "a\\..\\..\\x"]
)
def test_safe_path_refuses(name, tmp_path):
    with pytest.raises(ImageError, match="path leads out of the source"):
        Folder.open(tmp_path).safe_path(name)


@pytest.mark.parametrize(
    "name", ["x", "a/x", "..x", "a/..x/..", "a..b", "1:2", "x:y/z", "~", "%2e%2e/x", "a/./x", "…", " "]
)
def test_safe_path_accepts(name, tmp_path):
    assert Folder.open(tmp_path).safe_path(name).startswith(str(tmp_path) + "/")


def test_backslash_in_a_name_of_this_disk(tmp_path, ingest):
    """A name with a backslash is that file, not one in a folder; only where there is none are slashes meant."""
    other = png(24, 16, seed=3)
    write_tree(tmp_path / "source", {"c/a\\b.png": GOOD, "c/a/b.png": other})
    found = samples(ingest(tmp_path / "source"))
    assert bytes(found["c/a\\b.png"].image) == GOOD
    assert bytes(found["c/a/b.png"].image) == other
    assert Folder.open(tmp_path / "source").read("c\\a\\b.png") == other


def test_unreadable_listing_is_a_clear_error(root, ingest, monkeypatch):
    yolo_list(root, "images/good.png")
    real = os.scandir

    def fail(path):
        if str(path).endswith("images"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    (root / "data.yaml").write_text("names: [a]\ntrain: images\n")
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(SightlineError, match=r"cannot list .*Permission denied"):
        ingest(root)


def test_everything_rejected_is_an_error(root, ingest):
    coco(root, "../outside/images/secret.jpg")
    shutil.rmtree(root / "images")
    with pytest.raises(TooManyRejectedError, match="none of the 2 images"):
        ingest(root)


@pytest.mark.parametrize("format", ["voc", "deeppcb", "folder"])
def test_a_file_where_a_folder_is_needed(format, root, ingest):
    write_tree(root, {"a/good.png": GOOD})
    with pytest.raises(FormatError, match=r"reads a folder, not the file 'good\.png'"):
        ingest(root / "a/good.png", format=format)
