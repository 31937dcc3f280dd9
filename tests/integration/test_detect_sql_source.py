"""Images that lie in a real PostgreSQL, as `sightline detect` reads them."""

import base64
import io
import pickle
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
from PIL import Image

from sightline.config import SourceConfig
from sightline.detection.item import Source, id_of
from sightline.detection.sources.factory import open_source
from sightline.errors import ConfigError, ImageError, StorageError
from sightline.workspace import Workspace


def png(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def opened(url: str, **settings: Any) -> Source:
    return open_source(url, SourceConfig(**settings), Workspace(Path("/nonexistent")))[0]


@pytest.fixture
def execute(postgres: str) -> Iterator[Any]:
    """Run statements on the server; the table `photos` is dropped before and after."""
    engine = sqlalchemy.create_engine(postgres)

    def run(statement: str, rows: list[dict[str, Any]] | None = None) -> None:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement), rows)

    run("drop table if exists photos")
    yield run
    run("drop table if exists photos")
    engine.dispose()


KINDS = {
    "bigint": [1, -7, 2**60],
    "text": ["a", "b';drop table photos;--", "snow☃"],
    "uuid": [uuid.UUID(int=number) for number in range(3)],
    "numeric(10, 2)": ["1.50", "2.25", "3.00"],
    "timestamptz": ["2024-02-29 01:02:03.000004+00", "2024-03-01+00", "1999-12-31+00"],
    "date": ["2024-02-29", "2024-03-01", "1999-12-31"],
    "bytea": [b"\x00", b"\xff", b"x"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_by_keys_of_any_kind(postgres: str, execute: Any, kind: str) -> None:
    execute(f'create table photos (n int, "Key \\:x" {kind}, "IMAGE_DATA" bytea)')
    rows = [{"n": n, "k": value, "i": png(n)} for n, value in enumerate(KINDS[kind])]
    execute(f"insert into photos values (:n, cast(:k as {kind}), :i)", rows)
    source = opened(postgres, query="select * from photos order by n;", key="Key :x")
    items = list(source.items())
    assert items == list(source.items())
    assert [source.read(item) for item in items] == [row["i"] for row in rows]
    copy = pickle.loads(pickle.dumps(source))
    assert copy.is_visible()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(copy.read, items * 10)) == [row["i"] for row in rows] * 10
    if kind == "bigint":
        assert [item.image_id for item in items] == [id_of(str(value)) for value in KINDS[kind]]


def test_base64_condition_and_limit(postgres: str, execute: Any) -> None:
    execute("create table photos (file_name text, image text, day timestamp)")
    rows = [{"f": f"{n:03}.png", "i": base64.b64encode(png(n)).decode(), "d": f"2024-01-{n + 1:02}"} for n in range(20)]
    execute("insert into photos values (:f, :i, cast(:d as timestamp))", rows)
    where = "day >= '2024-01-05 00:00:00'::timestamp and file_name like '%.png'"
    source = opened(postgres, query="select * from photos order by file_name", where=where, limit=3)
    assert [source.read(item) for item in source.items()] == [png(4), png(5), png(6)]
    with pytest.raises(ConfigError, match="colour"):
        opened(postgres, query="select * from photos", where="colour = 'red'")


def test_paths(postgres: str, execute: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(0))
    execute("create table photos (id int, path text)")
    execute("insert into photos values (:n, :p)", [{"n": 1, "p": "a.png"}, {"n": 2, "p": f"{tmp_path}/a.png"}])
    query = "select * from photos order by id"
    source = opened(postgres, query=query, key="id", root=str(tmp_path))
    assert [source.read(item) for item in source.items()] == [png(0), png(0)]
    assert [item.image_id for item in source.items()] == [id_of("1"), id_of("2")]
    rootless = opened(postgres, query=query, key="id")
    first, second = rootless.items()
    assert rootless.read(second) == png(0)
    with pytest.raises(ImageError, match=r"source\.root"):
        rootless.read(first)


def test_keys_stream_from_the_server(postgres: str, execute: Any) -> None:
    """A client-side cursor would hold all rows at once."""
    execute("create table photos (id int, image bytea)")
    execute("insert into photos select n, '' from generate_series(1, 200000) as n")
    source = opened(postgres, query="select * from photos", key="id")
    next(source.items())
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_images_are_not_listed(postgres: str, execute: Any) -> None:
    """One that cannot even be computed harms itself only."""
    execute("create table photos (id int, size int)")
    execute("insert into photos values (1, 1), (2, 0)")
    source = opened(postgres, query="select id, convert_to((1 / size)::text, 'UTF8') as image from photos", key="id")
    first, second = source.items()
    assert source.read(first) == b"1"
    with pytest.raises(ImageError, match="division by zero"):
        source.read(second)


def test_copy_connects_in_another_process(postgres: str, execute: Any, tmp_path: Path) -> None:
    execute("create table photos (id int, image bytea)")
    execute("insert into photos values (:n, :i)", [{"n": n, "i": png(n)} for n in range(3)])
    url = postgres.replace("postgres@/", "postgres:hunter2@/")
    source = opened(url, query="select * from photos order by id", key="id")
    items = list(source.items())
    assert "hunter2" not in repr([source.name, *items])
    (tmp_path / "sent").write_bytes(pickle.dumps((source, items)))
    code = "import pickle, sys; s, i = pickle.load(open(sys.argv[1], 'rb')); print([len(s.read(x)) for x in i])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "sent"], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.strip() == str([len(png(n)) for n in range(3)])


def test_mistakes_are_sentences_without_the_password(postgres: str, execute: Any) -> None:
    url = postgres.replace("postgres@/", "postgres:hunter2@/")
    for query, match in (("select * from nothing", "does not exist"), ("selekt", "syntax error")):
        with pytest.raises(StorageError, match=match) as caught:
            opened(url, query=query, key="id")
        assert "hunter2" not in str(caught.value)
