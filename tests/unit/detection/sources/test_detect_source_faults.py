"""What sources do with names, archives and URLs that are made to hurt, or that hold what must not be shown."""

import io
import os
import sqlite3
import subprocess
import tarfile
import zipfile
from contextlib import closing

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.detection.sources import table_files, tar_members
from sightline.detection.sources.columns import key_from_json, key_to_json
from sightline.detection.sources.source_file import SourceFile
from sightline.detection.sources.sql import _parse, _public
from sightline.detection.sources.table_files import RowReader, open_table
from sightline.errors import StorageError


def test_name_that_no_bucket_has_is_one_rejected_image(bucket):
    url = bucket.write(pngs("in/y.png") | {"in/list.txt": b"\xff.png\ny.png\n"})
    odd, good = contents(opened(f"{url}/in/list.txt")).values()
    assert reason(odd) == ("path", "file not readable")
    assert good == png()
    [odd] = contents(opened([f"{url}/\udcff.png"])).values()
    assert reason(odd) == ("path", "file not readable")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:SECRET@host:5432/db", "postgresql://host:5432/db"),
        ("postgresql://me:a?b=SECRET@host/db", "postgresql://host/db"),
        ("postgresql://me:SECRET?@host/db?sslmode=require", "postgresql://host/db?sslmode=require"),
        ("postgresql://me:SEC%2FRET@/db?host=/run/pg", "postgresql:///db?host=%2Frun%2Fpg"),
        ("postgresql://host/db?user=me&password=SECRET", "postgresql://host/db?password=%2A%2A%2A&user=me"),
        ("mssql+pyodbc:///?odbc_connect=SERVER%3Dh%3BPWD%3DSECRET", None),
        ("snowflake://me:SECRET@account/db/schema?warehouse=w&token=SECRET", None),
    ],
)
def test_database_is_named_without_credentials(url, shown):
    found = _public(*_parse(url))
    assert "SECRET" not in found
    assert "SEC%2FRET" not in found
    assert shown in (None, found)


def test_name_does_not_depend_on_who_asks():
    assert _public(*_parse("postgresql://a:1@h/db?password=x")) == _public(*_parse("postgresql://b:2@h/db?password=y"))


@pytest.fixture
def versions(tmp_path):
    """A database with two images of one key."""
    with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("create table photos (id integer, version integer, image blob)")
        database.executemany("insert into photos values (7, ?, ?)", [(1, png(1)), (2, png(2))])
    return tmp_path / "p.db"


@pytest.mark.parametrize("version", [1, 2])
def test_image_of_a_key_is_that_of_the_row_that_was_listed(versions, version):
    source = opened(f"sqlite:///{versions}", query="select * from photos", key="id", where=f"version = {version}")
    assert list(contents(source).values()) == [png(version)]


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///file:{}?uri=true", "sqlite+pysqlite:///{}?timeout=5"])
def test_database_is_only_read(versions, url):
    before = versions.read_bytes(), versions.stat().st_mtime_ns
    contents(opened(url.format(versions), query="select * from photos", key="version"))
    assert (versions.read_bytes(), versions.stat().st_mtime_ns) == before
    assert list(versions.parent.iterdir()) == [versions]


def test_database_with_an_odd_name(tmp_path):
    path = tmp_path / "100% of #1.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table photos (id integer, image blob)")
        database.execute("insert into photos values (1, ?)", (png(),))
    assert contents(opened(f"sqlite:///{path}", query="select * from photos", key="id")) == {
        f"sqlite:///{path}#1": png()
    }


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_keys_of_bytes_in_any_form(kind):
    assert key_from_json(key_to_json(kind(b"\0\xff"))) == b"\0\xff"


def test_last_member_of_a_name_counts_in_a_zip(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.png", b"old")
        archive.writestr("b.png", b"b")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.png", b"new")
    write_files(tmp_path, {"a.zip": out.getvalue()})
    assert [item.uri[-5:] for item in opened(tmp_path / "a.zip").items()] == ["a.png", "b.png"]
    assert list(contents(opened(tmp_path / "a.zip")).values()) == [b"new", b"b"]


def test_sparse_file_in_a_tar_is_refused(tmp_path):
    with open(tmp_path / "s.png", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    subprocess.run(["tar", "--sparse", "-cf", "a.tar", "s.png"], cwd=tmp_path, check=True)
    [error] = contents(opened(tmp_path / "a.tar")).values()
    assert reason(error) == ("path", "sparse file in an archive")


def test_tar_member_that_is_too_large(tmp_path):
    member = tarfile.TarInfo("huge.png")
    member.size = 2 << 30
    with open(tmp_path / "a.tar", "wb") as file:  # With a hole: it takes no room.
        file.write(member.tobuf())
        file.truncate(512 + member.size + 1024)
    [error] = contents(opened(tmp_path / "a.tar")).values()
    assert reason(error) == ("path", "file not readable")
    assert "more than" in str(error)


def test_no_room_to_unpack(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_members, "_KEEP_FREE_BYTES", 1 << 60)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(StorageError, match="no room in"):
        list(opened(tmp_path / "a.tar.gz").items())
    assert list(tmp_path.iterdir()) == [tmp_path / "a.tar.gz"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_rows_that_are_kept_are_bounded_by_their_bytes(tmp_path, monkeypatch, suffix):
    table = pa.table({"image": [bytes([number]) * 100_000 for number in range(40)]})
    if suffix == "parquet":
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=2, compression="none", use_dictionary=False)
    else:
        feather.write_feather(table, tmp_path / "t.arrow", chunksize=2, compression="uncompressed")
    monkeypatch.setattr(table_files, "_KEPT_BYTES", 500_000)
    rows = RowReader(lambda name: SourceFile.at(f"{tmp_path}/{name}"), ["image"])
    for number in [*range(40), *range(39, -1, -1)]:
        assert rows.row(f"t.{suffix}", number // 2, number % 2)["image"] == bytes([number]) * 100_000
        assert sum(batch.nbytes for *_, batch in rows._windows) <= 500_000


@pytest.mark.parametrize("name", ["image", "the.image", "image.bytes"])
def test_windows_of_large_images_have_few_rows(tmp_path, name):
    images = [os.urandom(1 << 20) for _ in range(20)]
    pq.write_table(pa.table({name: images}), tmp_path / "t.parquet", use_dictionary=False)
    file = SourceFile.at(f"{tmp_path}/t.parquet").reader(patient=False)
    batches = open_table(file, "t.parquet").batches(0, [name], bounded=True)
    assert max(batch.nbytes for batch in batches) < 10 << 20
