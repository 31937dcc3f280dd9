"""What a source is taken for, datasets, limits, and settings that do not fit."""

import os
import pickle
import zipfile

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from source_builders import contents, opened, png, pngs, write_files

import sightline
from failing_disk import ALWAYS, FailingDisk
from sightline.config import SourceConfig
from sightline.detection.sources.archive import ArchiveSource
from sightline.detection.sources.dataset import DatasetSource
from sightline.detection.sources.factory import open_source
from sightline.detection.sources.folder import FolderSource
from sightline.detection.sources.glob import GlobSource
from sightline.detection.sources.listing import ListFileSource, ListSource
from sightline.detection.sources.table import TableSource
from sightline.errors import ConfigError, DamagedError, FormatError, ImageError, NotFoundError, StorageError
from sightline.workspace import Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with the dataset "boards"."""
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "boards", images=30, seed=4, workspace=place)
    return place


@pytest.fixture
def place(tmp_path, monkeypatch, workspace):
    """Something of every kind, in the working directory."""
    write_files(tmp_path, pngs("photos/a.png", "photos/deep/b.jpg", "photos/x[1].png", "scan.dat"))
    write_files(tmp_path, {"list.txt": "photos/a.png\n", "mixed/t.parquet": b"", "mixed/a.png": png(), "rows.csv": "x"})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.png", png())
    (tmp_path / "parts").mkdir()
    table = pa.table({"image": [png()]})
    pq.write_table(table, tmp_path / "T.PARQUET")
    pq.write_table(table, tmp_path / "parts/0.parquet")
    feather.write_feather(table, tmp_path / "t.feather")
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").symlink_to(workspace / "datasets/boards")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "kind", "why"),
    [
        (["photos/a.png", "scan.dat"], ListSource, "a list of 2 paths"),
        (("photos/a.png",), ListSource, "a list of 1 paths"),
        ("boards", DatasetSource, "a dataset of the workspace"),
        ("linked", DatasetSource, "a dataset, for it holds dataset.json"),
        ("parts", TableSource, "a table, for it holds 0.parquet"),
        ("photos", FolderSource, "a folder of images"),
        ("./photos/", FolderSource, "a folder of images"),
        ("mixed", FolderSource, "a folder of images"),
        ("empty", FolderSource, "a folder of images"),
        (".", FolderSource, "a folder of images"),
        ("photos/*.png", GlobSource, "images that match a pattern"),
        ("photos/**", GlobSource, "images that match a pattern"),
        ("photos/x[1].png", ListSource, "a single image"),
        ("photos/a.png", ListSource, "a single image"),
        ("scan.dat", ListSource, "a single image"),
        ("a.zip", ArchiveSource, "an archive, by its suffix .zip"),
        ("T.PARQUET", TableSource, "a table, by its suffix .parquet"),
        ("t.feather", TableSource, "a table, by its suffix .feather"),
        ("list.txt", ListFileSource, "a list, by its suffix .txt"),
    ],
)
def test_kinds_are_recognised(place, workspace, source, kind, why):
    found, reason = open_source(source, SourceConfig(), Workspace(workspace))
    assert type(found) is kind
    assert reason == why
    contents(found)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nothing", NotFoundError, "no dataset of the workspace, file or folder: `sightline datasets`"),
        ("./nothing", NotFoundError, "does not exist: give a folder"),
        ("nothing/*.png", NotFoundError, "does not exist"),
        ("memory://none/x", NotFoundError, "does not exist"),
        ("memory://KEY:SECRET@none/x", NotFoundError, "'memory://none/x' does not exist"),
        ("rows.csv", FormatError, "not read from .csv files; give a table as .parquet"),
        ("https://host/a.png", StorageError, "https:// is not opened"),
        ("", ConfigError, "empty"),
        ("sqlite:///none.db", ConfigError, r"source\.query"),
    ],
)
def test_what_there_is_not(place, workspace, source, error, message):
    with pytest.raises(error, match=message) as caught:
        open_source(source, SourceConfig(), Workspace(workspace))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("source", ["photos", "photos/*.png", "list.txt", ["photos/a.png"], "a.zip", "photos/a.png"])
@pytest.mark.parametrize("setting", ["where", "query", "image", "path", "key"])
def test_settings_that_mean_nothing_are_refused(place, workspace, source, setting):
    with pytest.raises(ConfigError, match=rf"source\.{setting} = 'x' means nothing .* leave it out"):
        open_source(source, SourceConfig(**{setting: "x"}), Workspace(workspace))


@pytest.mark.parametrize("setting", ["query", "image", "path", "key", "root"])
def test_settings_of_a_dataset(place, workspace, setting):
    with pytest.raises(ConfigError, match=rf"source\.{setting} .* kind dataset"):
        open_source("boards", SourceConfig(**{setting: "x"}), Workspace(workspace))


@pytest.mark.parametrize("source", ["photos", "boards", "photos/**", "T.PARQUET"])
def test_limit_is_part_of_the_name(place, workspace, source):
    whole = opened(source, workspace)
    first = opened(source, workspace, limit=1)
    assert list(first.items()) == list(whole.items())[:1]
    assert first.name != whole.name
    contents(first)
    assert len(list(opened(source, workspace, limit=10**9).items())) == len(list(whole.items()))


def test_dataset(workspace):
    dataset = sightline.open_dataset("boards", workspace=workspace)
    location = f"{workspace}/datasets/boards"
    for reference in ("boards", location, f"{location}/"):
        source = opened(reference, workspace)
        assert contents(source) == {f"{location}/{sample.file_name}": bytes(sample.image) for sample in dataset}
        items = list(source.items())
        assert [(item.image_id, item.version, item.ref) for item in items] == [
            (sample.image_id, "", str(row)) for row, sample in enumerate(dataset)
        ]
    assert dataset.info.content_hash[:16] in source.name


@pytest.mark.parametrize(
    ("where", "test"),
    [
        ("split = 'test'", lambda s: s.split == "test"),
        ("width > height", lambda s: s.width > s.height),
        ("file_name like '%1.%' or split in ('val')", lambda s: "1." in s.file_name or s.split == "val"),
        ("label is null", lambda s: True),
        ("false", lambda s: False),
    ],
)
def test_condition_on_a_dataset(workspace, where, test):
    dataset = sightline.open_dataset("boards", workspace=workspace)
    source = opened("boards", workspace, where=where)
    assert list(contents(source).values()) == [bytes(sample.image) for sample in dataset if test(sample)]
    assert where in source.name


@pytest.mark.parametrize("where", ["colour = 'red'", "image is not null", "split ="])
def test_wrong_condition_on_a_dataset(workspace, where):
    with pytest.raises(ConfigError, match="the columns are image_id, file_name, width, height, split, label"):
        opened("boards", workspace, where=where)


def test_dataset_in_a_bucket(workspace, bucket):
    folder = workspace / "datasets/boards"
    url = bucket.write({file.name: file.read_bytes() for file in folder.iterdir()})
    local = opened("boards", workspace)
    assert list(contents(opened(url)).values()) == list(contents(local).values())


def test_damaged_dataset(workspace, tmp_path):
    for file in (workspace / "datasets/boards").iterdir():
        write_files(tmp_path, {file.name: file.read_bytes()})
    source = opened(str(tmp_path))
    items = list(source.items())
    [shard] = [tmp_path / info.file for info in sightline.open_dataset(tmp_path).info.shards]
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(ImageError, match="damaged dataset"):
        pickle.loads(pickle.dumps(source)).read(items[0])
    with pytest.raises(DamagedError, match="is not the file that was written"):
        list(source.items())


def test_folder_named_like_a_dataset_is_meant_with_a_slash(workspace, tmp_path, monkeypatch):
    write_files(tmp_path, pngs("boards/a.png"))
    monkeypatch.chdir(tmp_path)
    assert isinstance(opened("boards", workspace), DatasetSource)
    assert isinstance(opened("./boards", workspace), FolderSource)
    assert isinstance(opened(tmp_path / "boards", workspace), FolderSource)


def test_single_image_in_a_bucket(bucket):
    bucket.write(pngs("in/a.png"))
    assert contents(opened(f"{bucket.url}/in/a.png")) == {f"{bucket.url}/in/a.png": png()}


@pytest.mark.parametrize(
    ("source", "missing", "kind"),
    [
        ("boards", "dataset.json", DatasetSource),
        ("linked", "linked", DatasetSource),
        ("photos", "photos", FolderSource),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_disk_that_fails_is_asked_again_what_a_source_is(place, workspace, monkeypatch, source, missing, kind):
    disk = FailingDisk(monkeypatch, os, "stat", missing, failures=2)
    found, _ = open_source(source, SourceConfig(), Workspace(workspace))
    assert isinstance(found, kind)
    assert disk.failed == 2
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=rf"{missing}.*Input/output error"):
        open_source(source, SourceConfig(), Workspace(workspace))
