"""What is true of every kind of source, in this process and in another one that stands somewhere else."""

import base64
import pickle
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from source_builders import contents, opened, pngs, read, write_files

import sightline
from sightline.detection.item import Source
from sightline.detection.sources.limited import Limited
from sightline.errors import StorageError

FILES = pngs(*(f"{folder}/{number:02}.png" for folder in "ab" for number in range(20)))
NAMES, IMAGES = list(FILES), list(FILES.values())
LINES = "\n".join(NAMES)


def struct(data: bytes | None, path: str | None) -> dict[str, Any]:
    return {"bytes": data, "path": path}


TABLES: dict[str, dict[str, Any]] = {
    "bytes": {"image": IMAGES, "file_name": NAMES},
    "bytes-without-key": {"image": IMAGES},
    "base64": {"image_data": [base64.b64encode(image).decode() for image in IMAGES], "filename": NAMES},
    "struct": {"image": [struct(image, name) for name, image in FILES.items()]},
    "struct-of-paths": {"image": [struct(None, name) for name in NAMES]},
    "paths": {"path": NAMES, "label": list(range(len(NAMES)))},
    "paths-named-image": {"image": NAMES},
}


def make_parquet(name: str) -> Callable[[], str]:
    def make() -> str:
        pq.write_table(pa.table(TABLES[name]), "t.parquet", row_group_size=7)
        return "t.parquet"

    return make


def make_arrow(name: str, compression: str) -> Callable[[], str]:
    def make() -> str:
        feather.write_feather(pa.table(TABLES[name]), "t.arrow", chunksize=7, compression=compression)
        return "t.arrow"

    return make


def make_table_folder() -> str:
    table = pa.table(TABLES["bytes"])
    Path("parts").mkdir()
    write_files(Path("parts"), {"_SUCCESS": b""})
    pq.write_table(table.slice(0, 15), "parts/0.parquet")
    pq.write_table(table.slice(15), "parts/1.parquet")
    return "parts"


def make_zip() -> str:
    with zipfile.ZipFile("t.zip", "w") as archive:
        for name in NAMES:
            archive.write(name)
    return "t.zip"


def make_tar(name: str, mode: Any) -> Callable[[], str]:
    def make() -> str:
        with tarfile.open(name, mode) as archive:
            for member in NAMES:
                archive.add(member)
        return name

    return make


def make_list_file() -> str:
    write_files(Path(), {"list.txt": LINES})
    return "list.txt"


def make_dataset() -> str:
    for name, data in FILES.items():
        write_files(Path("classes"), {name: data})
    sightline.ingest("classes", "d", workspace="w", workers=1)
    return "w/datasets/d"


def make_database() -> str:
    with closing(sqlite3.connect("t.db")) as database, database:
        database.execute("create table pictures (id integer, image blob, text_image text, path text)")
        rows = [
            (number, image, base64.b64encode(image).decode(), name)
            for number, (name, image) in enumerate(FILES.items())
        ]
        database.executemany("insert into pictures values (?, ?, ?, ?)", rows)
    return "sqlite:///t.db"


ALL = "select * from pictures order by id"
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "folder": (lambda: ".", {}),
    "pattern": (lambda: "*/*.png", {}),
    "list": (lambda: list(NAMES), {}),
    "list with root": (lambda: list(NAMES), {"root": "."}),
    "list file": (make_list_file, {}),
    "zip": (make_zip, {}),
    "tar": (make_tar("t.tar", "w"), {}),
    "tar.gz": (make_tar("t.tar.gz", "w:gz"), {}),
    **{f"parquet {name}": (make_parquet(name), {}) for name in TABLES},
    **{f"arrow {name}": (make_arrow(name, "uncompressed"), {}) for name in TABLES},
    "arrow compressed": (make_arrow("bytes", "lz4"), {}),
    "table folder": (make_table_folder, {}),
    "dataset": (make_dataset, {}),
    "sql bytes": (make_database, {"query": ALL, "image": "image", "key": "id"}),
    "sql base64": (make_database, {"query": ALL, "image": "text_image", "key": "id"}),
    "sql paths": (make_database, {"query": ALL, "path": "path"}),
    "sql paths with key": (make_database, {"query": ALL, "path": "path", "key": "id"}),
}


def make(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source of some kind, opened by a relative name."""
    write_files(place, FILES)
    monkeypatch.chdir(place)
    maker, settings = KINDS[kind]
    return opened(maker(), **settings)


@pytest.fixture(params=KINDS)
def source(request, tmp_path, monkeypatch) -> Source:
    return make(request.param, tmp_path, monkeypatch)


def test_images_are_read_as_they_were_written(source):
    assert list(contents(source).values()) == IMAGES


def test_ids_tell_images_apart_and_do_not_change(source, tmp_path, monkeypatch):
    ids = [item.image_id for item in source.items()]
    assert len(set(ids)) == len(ids) == len(IMAGES)
    name = source.name
    monkeypatch.chdir("/")
    assert source.name == name
    assert [item.image_id for item in source.items()] == ids


def test_another_process_in_another_directory_reads_them(tmp_path, monkeypatch):
    sources = [make(kind, tmp_path / kind, monkeypatch) for kind in KINDS]
    sent, back = tmp_path / "sent.pickle", tmp_path / "back.pickle"
    sent.write_bytes(pickle.dumps([(source, list(source.items())) for source in sources]))
    code = """
import pickle, sys
with open(sys.argv[1], "rb") as sent, open(sys.argv[2], "wb") as back:
    found = [(s.name, s.is_visible(), [s.read(item) for item in items]) for s, items in pickle.load(sent)]
    pickle.dump(found, back)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code, sent, back], cwd="/", check=True)
    for source, found in zip(sources, pickle.loads(back.read_bytes()), strict=True):
        assert found == (source.name, True, IMAGES)


def test_threads_read_at_once_in_any_order(source):
    items = list(source.items())
    order = [number * 17 % len(items) for number in range(3 * len(items))]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: source.read(items[number]), order))
    assert found == [IMAGES[number] for number in order]


def test_limit_takes_the_first(source):
    limited = Limited(source, 3)
    assert list(contents(limited).values()) == IMAGES[:3]
    assert list(limited.items()) == list(source.items())[:3]
    assert limited.name == f"{source.name} limit 3"


def test_a_source_that_is_gone_is_no_fault_of_its_images(source, tmp_path):
    """As on a machine where the disk is not mounted; it may come back."""
    copy, items = pickle.dumps(source), list(source.items())
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    again = pickle.loads(copy)
    if source.name.endswith(".tar.gz"):
        assert [read(again, item) for item in items] == IMAGES  # What was unpacked is there as long as the driver is.
        return
    for item in items:
        with pytest.raises(StorageError, match=r"run the same command|write to another|refused"):
            again.read(item)
    assert list(tmp_path.iterdir()) == []
