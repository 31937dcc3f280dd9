"""Tables in a real PostgreSQL, in the layout of the Snowflake guide."""

import base64
import json
from pathlib import Path

import pytest
import sqlalchemy

import sightline
from sightline.errors import ConfigError, StorageError

QUERY = 'select * from pcb order by "FILENAME", "XMIN"'


@pytest.fixture
def table(postgres: str, tmp_path: Path) -> sightline.Dataset:
    """Shapes in a table: one row a box, base64 text, upper-case columns."""
    sightline.synth("shapes", "shapes", images=20, seed=2, workspace=tmp_path)
    dataset = sightline.open_dataset("shapes", workspace=tmp_path)
    rows = [
        {
            "f": s.file_name,
            "i": base64.b64encode(s.image).decode(),
            "c": dataset.classes[label],
            "x0": x0,
            "y0": y0,
            "x1": x1,
            "y1": y1,
        }
        for s in dataset
        for (x0, y0, x1, y1), label in zip(s.annotation.boxes.tolist(), s.annotation.labels.tolist(), strict=True)
    ]
    engine = sqlalchemy.create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("drop table if exists pcb"))
        columns = (
            '"FILENAME" text, "IMAGE_DATA" text, "CLASS" text, "XMIN" float, "YMIN" float, "XMAX" float, "YMAX" float'
        )
        connection.execute(sqlalchemy.text(f"create table pcb ({columns})"))
        connection.execute(sqlalchemy.text("insert into pcb values (:f, :i, :c, :x0, :y0, :x1, :y1)"), rows)
    engine.dispose()
    return dataset


def test_query_becomes_a_dataset(postgres: str, table: sightline.Dataset, tmp_path: Path) -> None:
    info = sightline.ingest(postgres, "pcb", query=QUERY, workspace=tmp_path)
    assert info.num_boxes == table.info.num_boxes
    assert info.classes == table.classes
    with_boxes = {sample.file_name: sample for sample in table if len(sample.annotation)}
    stored = sightline.open_dataset("pcb", workspace=tmp_path)
    assert {sample.file_name for sample in stored} == set(with_boxes)
    for sample in stored:
        original = with_boxes[sample.file_name]
        assert bytes(sample.image) == bytes(original.image)
        assert sorted(sample.annotation.boxes.tolist()) == sorted(original.annotation.boxes.tolist())


def test_password_is_not_written_down(postgres: str, table: sightline.Dataset, tmp_path: Path) -> None:
    url = postgres.replace("postgres@/", "postgres:hunter2@/")
    sightline.ingest(url, "pcb", query=QUERY, workspace=tmp_path)
    assert "hunter2" not in (tmp_path / "datasets" / "pcb" / "dataset.json").read_text()
    assert "pcb" in json.dumps(sightline.open_dataset("pcb", workspace=tmp_path).info.config)


def test_database_errors_are_sentences(postgres: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--query"):
        sightline.ingest(postgres, "x", workspace=tmp_path)
    with pytest.raises(StorageError, match="does not exist"):
        sightline.ingest(postgres, "x", query="select * from nothing", workspace=tmp_path)
    with pytest.raises(StorageError, match="the database refused"):
        sightline.ingest("postgresql+psycopg://nobody@/none?host=/nowhere", "x", query="select 1", workspace=tmp_path)
