"""Images in SQLite: keys are listed, images are asked for one by one."""

import base64
import datetime
import decimal
import pickle
import sqlite3
import subprocess
import sys
import tracemalloc
import uuid
from contextlib import closing

import pytest
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.detection.item import id_of
from sightline.detection.sources.columns import key_from_json, key_text, key_to_json
from sightline.errors import ConfigError, FormatError, NotFoundError, SightlineError, StorageError


def database(path, columns, rows, table="photos"):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"create table {table} ({columns})")
        connection.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)
    return f"sqlite:///{path}"


@pytest.fixture
def photos(tmp_path):
    """Five photos by number, with a label."""
    rows = [(number, png(number), "odd" if number % 2 else "even") for number in range(5)]
    return database(tmp_path / "p.db", "id integer primary key, image blob, label text", rows)


def test_images_by_key(photos):
    source = opened(photos, query="select * from photos order by id", key="id")
    assert contents(source) == {f"{photos}#{number}": png(number) for number in range(5)}
    assert [item.image_id for item in source.items()] == [id_of(str(number)) for number in range(5)]
    assert {item.version for item in source.items()} == {""}


@pytest.mark.parametrize(
    "query",
    [
        "select * from photos;",
        "select * from photos -- all of them",
        "select id, image from photos where label <> ':x' and label not like '%:y%'",
        "with q as (select * from photos) select * from q",
        "select id, image, cast(12 as text) || ':30' as time from photos",
    ],
)
def test_queries_that_are_hard_to_wrap(photos, query):
    assert list(contents(opened(photos, query=query, key="id")).values()) == [png(number) for number in range(5)]


def test_condition_is_part_of_the_statement(photos):
    source = opened(photos, query="select * from photos", key="id", where="label = 'odd' -- those")
    assert list(contents(source).values()) == [png(1), png(3)]
    assert source.name != opened(photos, query="select * from photos", key="id").name
    with pytest.raises(ConfigError, match="colour"):
        opened(photos, query="select * from photos", key="id", where="colour = 'red'")


@pytest.mark.parametrize(
    ("columns", "values", "key"),
    [
        ('"file_name" text, "image" blob', ["a.png", "b';drop table photos;--", 'q"uote', "new\nline", "☃"], None),
        ('"Group" text, "IMAGE_DATA" blob', ["x", "y"], "Group"),
        ('"odd ""name"" :x %s" text, image blob', ["x", "y"], 'odd "name" :x %s'),
        ("k real, image blob", [0.1, 1e300], "k"),
        ("k integer, image blob", [-1, 2**60], "k"),
        ("k blob, image blob", [b"\x00\xff", b"\x01"], "k"),
        ("k, image blob", [1, "2"], "k"),
    ],
)
def test_keys_of_any_kind(tmp_path, columns, values, key):
    rows = [(value, png(number)) for number, value in enumerate(values)]
    source = opened(database(tmp_path / "p.db", columns, rows), query="select * from photos", key=key)
    assert list(contents(source).values()) == [image for _, image in rows]
    assert [item.image_id for item in source.items()] == [id_of(key_text(value)) for value in values]


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1, "x", 0.1, b"\0\xff", uuid.UUID(int=7), decimal.Decimal("1.50"), datetime.date(2024, 2, 29)),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC),
    ],
)
def test_keys_survive_json(value):
    copy = key_from_json(key_to_json(value))
    assert copy == value
    assert type(copy) is type(value)


def test_base64_and_cells_without_an_image(tmp_path):
    cells = [
        base64.b64encode(png()).decode(),
        "data:image/png;base64," + base64.b64encode(png()).decode(),
        None,
        "",
        "?",
    ]
    url = database(tmp_path / "p.db", "name text, img", [(f"n{n}", cell) for n, cell in enumerate(cells)])
    *good, null, empty, garbage = contents(opened(url, query="select * from photos")).values()
    assert good == [png(), png()]
    assert [reason(bad) for bad in (null, empty, garbage)] == [
        ("decode", "no image"),
        ("decode", "no image"),
        ("decode", "image text is not base64"),
    ]


def test_rows_without_a_key_and_rows_that_are_gone(tmp_path):
    url = database(tmp_path / "p.db", "id integer, image blob", [(1, png()), (None, png()), (None, png())])
    source = opened(url, query="select * from photos", key="id")
    items = list(source.items())
    assert len({item.image_id for item in items}) == 3
    assert [reason(error) for error in list(contents(source).values())[1:]] == [("path", "no key")] * 2
    with closing(sqlite3.connect(tmp_path / "p.db")) as connection, connection:
        connection.execute("delete from photos")
    with pytest.raises(SightlineError, match="row not found"):
        source.read(items[0])


def test_paths_begin_at_the_database_or_root(tmp_path, bucket):
    write_files(tmp_path, pngs("in/a.png", "in/b.png"))
    remote = bucket.write(pngs("x.png"))
    rows = [("in/a.png",), (f"{tmp_path}/in/b.png",), (f"{remote}/x.png",), ("https://host/c.png",), (None,)]
    url = database(tmp_path / "p.db", "path text", rows)
    first, second, third, refused, empty = contents(opened(url, query="select * from photos")).values()
    assert (first, second, third) == (png(0), png(1), png(0))
    assert [reason(error) for error in (refused, empty)] == [("path", "not a path or bucket"), ("path", "no path")]
    rooted = opened(url, query="select * from photos limit 1", root=str(tmp_path / "elsewhere"))
    assert [item.uri for item in rooted.items()] == [f"{tmp_path}/elsewhere/in/a.png"]
    ids = [item.image_id for item in opened(url, query="select path, path as k from photos", key="k").items()]
    assert ids[0] == id_of("in/a.png")


def test_column_named_image_may_hold_paths(tmp_path):
    write_files(tmp_path, pngs("a.png"))
    url = database(tmp_path / "p.db", "image text", [("a.png",)])
    assert contents(opened(url, query="select * from photos")) == {f"{tmp_path}/a.png": png()}


def test_listing_does_not_touch_images(tmp_path):
    url = database(tmp_path / "p.db", "id integer, image blob", [(number, bytes(1 << 20)) for number in range(50)])
    source = opened(url, query="select * from photos", key="id")
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 50
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_many_rows_stream(tmp_path):
    url = database(tmp_path / "p.db", "id integer, image blob", [(number, b"") for number in range(20_000)])
    source = opened(url, query="select * from photos", key="id")
    next(source.items())
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_mistakes_are_sentences(tmp_path, photos):
    with pytest.raises(ConfigError, match=r"source\.query"):
        opened(photos)
    with pytest.raises(ConfigError, match=r"source\.key = COLUMN, one of id, image, label"):
        opened(photos, query="select * from photos")
    with pytest.raises(ConfigError, match="the query has id, image, label"):
        opened(photos, query="select * from photos", key="number")
    with pytest.raises(FormatError, match="no column with images or paths"):
        opened(photos, query="select id, label from photos")
    with pytest.raises(StorageError, match="no such table"):
        opened(photos, query="select * from missing")
    with pytest.raises(NotFoundError, match="no database"):
        opened(f"sqlite:///{tmp_path}/none.db", query="select 1")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StorageError, match="refused"):
        opened("nosuchdialect://host/x", query="select 1")


def test_credentials_are_shown_nowhere(photos):
    with pytest.raises(StorageError) as caught:
        opened("postgresql+psycopg://me:SECRET@127.0.0.1:1/x?connect_timeout=1", query="select 1")
    assert "SECRET" not in str(caught.value)
    source = opened(photos, query="select * from photos", key="id")
    assert photos in source.name
    assert "select * from photos" in source.name


def test_copy_works_in_another_process_and_directory(tmp_path, photos, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = opened("sqlite:///p.db", query="select * from photos", key="id")
    assert source.name == opened(photos, query="select * from photos", key="id").name
    write_files(tmp_path, {"sent": pickle.dumps((source, list(source.items())))})
    code = """
import pickle, sys
source, items = pickle.load(open(sys.argv[1], "rb"))
print(source.is_visible(), source.is_visible() and [len(source.read(item)) for item in items])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "sent")]
    seen = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
    assert seen == f"True {[len(png(number)) for number in range(5)]}"
    (tmp_path / "p.db").rename(tmp_path / "moved.db")
    assert subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip() == "False False"
