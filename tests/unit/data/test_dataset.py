"""Reading back: the same bytes by row, by shard and from the source; damage is named, never garbage."""

import json
import os
import pickle
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import coco_json, png, write_tree

import sightline
from failing_disk import ALWAYS, FailingDisk
from sightline.data import dataset as dataset_module
from sightline.data import ingest as ingest_module
from sightline.data import shard as shard_module
from sightline.data.dataset import Dataset
from sightline.data.schema import ROWS
from sightline.errors import DamagedError, NotFoundError, SightlineError, StorageError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    names = [f"{n}.png" for n in range(40)]
    boxes = [(n % 40 + 1, 1, 1 + n % 7, 2, 10, 10) for n in range(90)]
    files = {"c.json": coco_json(names, boxes), "gone": "x"} | {name: png(seed=n) for n, name in enumerate(names)}
    return write_tree(tmp_path / "source", files)


@pytest.fixture
def dataset(source, ingest, monkeypatch) -> Dataset:
    monkeypatch.setattr(ingest_module, "MAX_SHARD_ENTRIES", 11)
    monkeypatch.setattr(shard_module, "ROW_GROUP_BYTES", 4000)
    return ingest(source, split="train=0.5,val=0.3,test=0.2")


def as_format_1(directory: Path) -> None:
    """What a dataset that was ingested before areas and contents were kept looks like."""
    for shard in directory.glob("shard-*.parquet"):
        table = pq.read_table(shard)
        pq.write_table(table.drop_columns("areas"), shard.with_suffix(".old"), **_options_of_format_1())
        shard.with_suffix(".old").rename(shard)
    manifest = json.loads((directory / "dataset.json").read_text())
    index = pa.ipc.open_file((directory / "index.arrow").read_bytes()).read_all()
    offsets = [offset for shard in manifest["shards"] for offset in offsets_in(directory / shard["file"])]
    index = index.set_column(1, "offset", pa.array(offsets, pa.int64())).drop_columns("content")
    with pa.ipc.new_file(str(directory / "index.arrow"), index.schema) as writer:
        writer.write_table(index)
    (directory / "dataset.json").write_text(json.dumps(manifest | {"format_version": 1}))


def _options_of_format_1() -> dict:
    options = shard_module._writer_options()
    del options["compression"]["areas.list.element"]
    return options


def offsets_in(shard: Path) -> list[int]:
    images = [bytes(image.as_buffer()) for image in pq.read_table(shard).column("image")]
    return shard_module.find_offsets(shard, [len(image) for image in images], [image[:32] for image in images])


def same(one, two) -> bool:
    columns = ((one.annotation, two.annotation),)
    return (
        (one.image_id, one.file_name, bytes(one.image), one.width, one.height, one.split)
        == (two.image_id, two.file_name, bytes(two.image), two.width, two.height, two.split)
        and all(np.array_equal(a.boxes, b.boxes) and np.array_equal(a.labels, b.labels) for a, b in columns)
        and np.array_equal(one.annotation.ignore, two.annotation.ignore)
    )


def test_random_access_equals_streaming_equals_source(dataset, source):
    assert dataset.num_shards == 4
    streamed = [sample for shard in range(dataset.num_shards) for sample in dataset.read_shard(shard)]
    assert len(streamed) == len(dataset) == 40
    for index in np.random.default_rng(0).permutation(40):
        sample = dataset[int(index)]
        assert same(sample, streamed[index])
        assert same(sample, dataset[int(index) - 40])
        assert bytes(sample.image) == (source / sample.file_name).read_bytes()
        for position in (int(index), int(index) - 40):
            assert np.array_equal(dataset.annotation(position).boxes, sample.annotation.boxes)


def test_images_are_read_only_bytes(dataset):
    image = dataset[3].image
    assert isinstance(image, memoryview)
    assert image.readonly
    streamed = next(iter(dataset.read_shard(0))).image
    assert isinstance(streamed, memoryview)
    assert bytes(streamed) == bytes(dataset[0].image)


def test_few_files_stay_open_and_views_outlive_them(dataset, monkeypatch):
    monkeypatch.setattr("sightline.data.dataset._OPEN_SHARDS", 1)
    views = [dataset[n].image for n in (0, 39, 0, 20)]
    assert len(dataset._shards._files) == 1
    assert bytes(views[0]) == bytes(views[2])


@pytest.mark.parametrize("index", [40, -41, 1000])
def test_outside_is_an_index_error(dataset, index):
    with pytest.raises(IndexError):
        dataset[index]
    with pytest.raises(IndexError):
        dataset.annotation(index)


def test_select(dataset):
    parts = {split: dataset.select(split) for split in dataset.info.splits}
    ids = [sample.image_id for part in parts.values() for sample in part]
    assert sorted(ids) == sorted(sample.image_id for sample in dataset)
    for split, part in parts.items():
        assert len(part) == dataset.info.splits[split].images
        assert {sample.split for sample in part} == {split}
        streamed = [sample.image_id for shard in range(part.num_shards) for sample in part.read_shard(shard)]
        assert streamed == [sample.image_id for sample in part]
        assert [part.annotation(i).boxes.tolist() for i in range(len(part))] == [
            s.annotation.boxes.tolist() for s in part
        ]
        assert len(part.select(split)) == len(part)
        assert len(part.select(next(other for other in parts if other != split))) == 0
    with pytest.raises(NotFoundError, match="has no split 'x', only "):
        dataset.select("x")


def test_pickling_keeps_the_selection(dataset):
    part = dataset.select("train")
    list(part)
    again = pickle.loads(pickle.dumps(part))
    assert len(pickle.dumps(part)) < 20_000
    assert all(same(one, two) for one, two in zip(part, again, strict=True))


def test_threads(dataset):
    fresh = Dataset.open(dataset.location)
    expected = [bytes(sample.image) for sample in dataset]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: bytes(fresh[n % 40].image), range(800)))
    assert found == expected * 20


def test_rejects(source, ingest):
    (source / "7.png").write_bytes(b"broken")
    table = ingest(source).rejects()
    assert table.column_names == ["file_name", "stage", "reason", "detail", "action"]
    assert table.to_pylist() == [
        {
            "file_name": "7.png",
            "stage": "decode",
            "reason": "not an image",
            "detail": "begins with b'broken'; JPEG, PNG, WebP, GIF, TIFF and BMP are read",
            "action": "image rejected",
        }
    ]


def test_no_rejects_is_an_empty_table(dataset):
    assert dataset.rejects().num_rows == 0


def read_all(location: str) -> list:
    dataset = Dataset.open(location)
    found = [bytes(sample.image) for sample in dataset]
    found += [bytes(s.image) for n in range(dataset.num_shards) for s in dataset.read_shard(n)]
    dataset.rejects()
    return found


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def swap_first_two(path: Path) -> None:
    other = path.with_name("shard-00001.parquet")
    path.rename(path.with_suffix(".x"))
    other.rename(path)
    path.with_suffix(".x").rename(other)


def remove(path: Path) -> None:
    path.unlink()


FILES = ["shard-00000.parquet", "index.arrow", "rejects.parquet", "dataset.json"]
DAMAGES = [(file, damage) for file in FILES for damage in (truncate, cut_end, empty, garbage, remove)]
UNHARMED = [("dataset.json", cut_end), ("dataset.json", remove)]


@pytest.mark.parametrize(
    ("file", "damage"),
    [*(pair for pair in DAMAGES if pair not in UNHARMED), ("shard-00000.parquet", swap_first_two)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_damage_is_named(dataset, file, damage):
    damage(Path(dataset.location) / file)
    with pytest.raises(DamagedError, match=file.partition("-")[0]):
        read_all(dataset.location)


def test_missing_manifest_means_no_dataset(dataset):
    (Path(dataset.location) / "dataset.json").unlink()
    with pytest.raises(NotFoundError, match="there is no dataset at"):
        Dataset.open(dataset.location)


def test_a_newer_format_is_refused_whatever_else_it_has(dataset):
    path = Path(dataset.location) / "dataset.json"
    newer = json.loads(path.read_text()) | {"format_version": 3}
    del newer["shards"]
    path.write_text(json.dumps(newer))
    with pytest.raises(DamagedError, match="has format version 3, this Sightline reads 1 to 2: install the version"):
        Dataset.open(dataset.location)


def test_a_dataset_of_the_first_format_is_read(source, ingest):
    """It has neither areas of boxes nor hashes of contents."""
    (source / "1.png").write_bytes((source / "0.png").read_bytes())
    stored = ingest(source)
    keys, expected = stored.content_keys(), list(stored)
    assert keys[0] == keys[1]
    as_format_1(Path(stored.location))
    old = Dataset.open(stored.location)
    assert all(same(one, two) for one, two in zip(old, expected, strict=True))
    assert all(sample.annotation.areas is None for sample in old)
    found = old.content_keys()
    assert [found.index(key) for key in found] == [keys.index(key) for key in keys]
    assert old.take([3, 1, 0]).content_keys()[0] == old.take([3, 1, 0]).content_keys()[1]


def test_no_python_object_is_kept_for_a_row():
    """Strings and numbers of the small columns stay in Arrow's memory, which tracemalloc does not see."""
    rows = 20_000
    columns = {
        "image_id": [f"{n:032x}" for n in range(rows)],
        "file_name": [f"folder/{n}.png" for n in range(rows)],
        "width": [640] * rows,
        "height": [480] * rows,
        "split": ["train"] * rows,
        "boxes": [[[1.0, 2.0, 3.0, 4.0]]] * rows,
        "labels": [[0]] * rows,
        "ignore": [[False]] * rows,
        "label": [None] * rows,
        "areas": [[2.5]] * rows,
    }
    table = pa.Table.from_pydict(columns, schema=pa.schema([ROWS.field(name) for name in columns]))
    del columns
    tracemalloc.start()
    kept = dataset_module._Columns(table)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held / rows < 16, f"{held / rows:.0f} bytes of Python objects a row"
    assert kept.image_id(7) == f"{7:032x}"
    assert kept.annotation(7).areas.tolist() == [2.5]


def test_index_of_another_dataset(dataset, source, ingest):
    (source / "0.png").write_bytes(png(90, 90, seed=9))
    other = ingest(source, split="train=0.5,val=0.3,test=0.2")
    shutil.copy(Path(other.location) / "index.arrow", dataset.location)
    with pytest.raises(DamagedError):
        read_all(dataset.location)


def test_index_of_fewer_images(dataset, source, ingest):
    (source / "39.png").unlink()
    other = ingest(source, split="train=0.5,val=0.3,test=0.2")
    shutil.copy(Path(other.location) / "index.arrow", dataset.location)
    with pytest.raises(DamagedError, match=r"index\.arrow is not that of this dataset"):
        Dataset.open(dataset.location)[0]


def test_streaming_a_shard_with_other_rows(dataset):
    location = Path(dataset.location)
    shutil.copy(location / "shard-00003.parquet", location / "shard-00000.parquet")
    with pytest.raises(DamagedError, match="7 rows instead of 11"):
        list(Dataset.open(location).read_shard(0))


def test_every_flipped_byte_is_noticed_or_harmless(dataset):
    """A flip is either named, or what is read is what was written; streaming checks images too, by page checksums."""
    good = [(s.image_id, bytes(s.image), s.annotation.boxes.tobytes(), s.split, s.width) for s in dataset]
    path = Path(dataset.location) / "shard-00000.parquet"
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            fresh = Dataset.open(dataset.location)
            found = [sample for shard in range(fresh.num_shards) for sample in fresh.read_shard(shard)]
        except SightlineError:
            continue
        assert [(s.image_id, bytes(s.image), s.annotation.boxes.tobytes(), s.split, s.width) for s in found] == good


@pytest.mark.parametrize("function", ["stat", "open"])
@pytest.mark.usefixtures("impatient")
def test_a_disk_that_fails_while_a_dataset_is_opened(dataset, monkeypatch, function):
    """It is asked again, and nobody is told that there is no dataset."""
    disk = FailingDisk(monkeypatch, os, function, "dataset.json", failures=2)
    assert Dataset.open(dataset.location).info == dataset.info
    assert disk.failed == 2
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=rf"^{dataset.location}/dataset\.json could not be read.*Input/output error"):
        Dataset.open(dataset.location)
    disk.failures = 0
    Path(dataset.location, "dataset.json").unlink()
    with pytest.raises(NotFoundError, match="there is no dataset at"):
        Dataset.open(dataset.location)


@pytest.mark.usefixtures("impatient")
def test_a_dataset_on_a_disk_that_fails_is_listed(tmp_path, monkeypatch):
    sightline.synth("shapes", "shapes", images=2, workspace=tmp_path)
    disk = FailingDisk(monkeypatch, os, "stat", "dataset.json", failures=2)
    assert [info.name for info in sightline.list_datasets(workspace=tmp_path)] == ["shapes"]
    assert disk.failed == 2
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=r"dataset\.json'.*Input/output error"):
        sightline.list_datasets(workspace=tmp_path)
