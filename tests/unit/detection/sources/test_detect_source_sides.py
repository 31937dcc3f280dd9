"""Which side a failure is on: an image that is missing is rejected, a source that is missing is no fault of images."""

import errno
import os
import pickle
import shutil
import sqlite3
import zipfile
from contextlib import closing

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from source_builders import opened, png, pngs, reason, write_files

import sightline
from sightline.data import disk
from sightline.data.storage import Folder
from sightline.detection.item import Item
from sightline.detection.sources import source_file
from sightline.detection.sources.folder import FolderSource
from sightline.detection.sources.listing import ListSource
from sightline.errors import FormatError, ImageError, SourceError

OF_ONE_FILE = [errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG]
OF_THE_DISK = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.ENOMEM, errno.EMFILE]


def failure(source, item):
    with pytest.raises((ImageError, SourceError)) as caught:
        source.read(item)
    return caught.value


def sources(place):
    """The same image by a folder, a pattern and a list."""
    return [opened(place), opened(f"{place}/*.png"), opened([f"{place}/a.png", f"{place}/b.png"])]


@pytest.mark.parametrize("number", [*OF_ONE_FILE, *OF_THE_DISK])
def test_errors_of_the_disk_are_told_from_those_of_a_file(tmp_path, monkeypatch, number):
    write_files(tmp_path, pngs("a.png", "b.png"))
    listed = [(source, next(source.items())) for source in sources(tmp_path)]

    def fail(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "read_file", fail)
    for source, item in listed:
        error = failure(source, item)
        if number in OF_ONE_FILE:
            assert reason(error) == ("read", "file not readable")
        else:
            assert isinstance(error, SourceError)
            assert os.strerror(number) in str(error)
            assert "run the same command" in str(error)


def test_a_file_that_was_removed_from_a_healthy_folder_is_rejected(tmp_path):
    write_files(tmp_path, pngs("a.png", "b.png"))
    listed = [(source, next(source.items())) for source in sources(tmp_path)]
    (tmp_path / "a.png").unlink()
    assert [reason(failure(*one)) for one in listed] == [("read", "file not found")] * 3


@pytest.mark.parametrize("left", ["an empty folder", "no folder", "a hidden file", "a note", "a folder"])
def test_a_folder_below_a_healthy_one_that_holds_no_image_any_more_is_out_of_reach(tmp_path, left):
    """As a mount point is whose file system is away, and a disk whose folder goes with it."""
    write_files(tmp_path, pngs("siteA/x.png", "siteB/y.png", "siteB/z.png"))
    names = ["siteA/x.png", "siteB/y.png", "siteB/z.png"]
    kinds = [opened(tmp_path), opened(f"{tmp_path}/*/*.png"), opened([f"{tmp_path}/{name}" for name in names])]
    listed = [(source, list(source.items())) for source in kinds]
    shutil.move(tmp_path / "siteB", tmp_path.with_name("away"))
    left_over = {"a hidden file": ".NOT_MOUNTED", "a note": "NOTE.txt", "a folder": "lost+found/1.png"}
    if left != "no folder":
        (tmp_path / "siteB").mkdir()
    if left in left_over:
        write_files(tmp_path / "siteB", {left_over[left]: b""})
    for source, (x, y, z) in listed:
        assert source.read(x) == png(0)
        for item in (y, z):
            error = failure(source, item)
            assert isinstance(error, SourceError)
            assert ("holds no images" if left in left_over else "is missing or empty") in str(error)
            assert "on this machine: is it mounted? When the images are there again, run the same command" in str(error)
            assert "source.missing=reject" in str(error)
    shutil.rmtree(tmp_path / "siteB", ignore_errors=True)
    shutil.move(tmp_path.with_name("away"), tmp_path / "siteB")
    for source, (_, y, z) in listed:
        assert [source.read(y), source.read(z)] == [png(1), png(2)]


def test_an_unmounted_disk_whose_directory_is_gone_is_out_of_reach(tmp_path):
    write_files(tmp_path, pngs("u/DISK/1.png", "u/DISK/2.png", "u/OTHER/3.png"))
    source = opened([f"{tmp_path}/u/DISK/{number}.png" for number in (1, 2)])
    items = list(source.items())
    shutil.rmtree(tmp_path / "u/DISK")
    assert all(isinstance(failure(source, item), SourceError) for item in items)


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_a_folder_that_was_removed_for_good_is_accepted_when_asked_to(tmp_path, kind):
    """Each of its images is rejected then; other errors of a source stay what they are."""
    write_files(tmp_path, pngs(*(f"a/{number:02}.png" for number in range(20)), "b/y.png"))
    place = tmp_path if kind == "folder" else [*map(str, sorted((tmp_path / "a").iterdir())), f"{tmp_path}/b/y.png"]
    source, usual = opened(place, missing="reject"), opened(place)
    assert source.name == usual.name, "it is the same job"
    *gone, last = source.items()
    shutil.rmtree(tmp_path / "a")
    copy = pickle.loads(pickle.dumps(source))
    assert {reason(failure(copy, item)) for item in gone} == {("read", "file not found")}
    assert copy.read(last) == png(20)


def test_an_image_that_is_missing_beside_one_that_was_read(tmp_path):
    """That one shows that the disk is there, also where all others were removed; if it is gone too, a few may be."""
    write_files(tmp_path, pngs(*(f"{number:02}.png" for number in range(30))))
    for source in sources(tmp_path)[:2]:
        first, *others = source.items()
        assert source.read(first)
        shutil.copytree(tmp_path, tmp_path.with_name("whole"))
        for file in tmp_path.iterdir():
            if file.name != "00.png":
                file.unlink()
        assert {reason(failure(source, item)) for item in others} == {("read", "file not found")}
        (tmp_path / "00.png").unlink()
        (tmp_path / "of-another-disk.png").write_bytes(png())
        found = [isinstance(failure(source, item), SourceError) for item in others]
        assert found == [False] * 7 + [True] * 22
        shutil.rmtree(tmp_path)
        shutil.move(tmp_path.with_name("whole"), tmp_path)
        assert source.read(others[0]) == png(1)


def test_many_images_that_were_removed_from_a_folder_beside_one_that_was_read(tmp_path):
    """Nobody mounts another disk in one folder, with images that were not there before, while a run goes on."""
    write_files(tmp_path, pngs("a/0.png", *(f"b/{number:02}.png" for number in range(20))))
    source = opened(tmp_path)
    first, *others = source.items()
    source.read(first)
    for file in sorted((tmp_path / "b").iterdir())[:12]:
        file.unlink()
    assert {reason(failure(source, item)) for item in others[:12]} == {("read", "file not found")}


def test_files_that_are_there_and_forbidden_are_to_blame(tmp_path, monkeypatch):
    write_files(tmp_path, pngs(*(f"{number:02}.png" for number in range(12))))
    source = opened(tmp_path)
    items = list(source.items())
    monkeypatch.setattr(disk, "read_file", forbid)
    assert {reason(failure(source, item)) for item in items} == {("read", "file not readable")}


def test_many_images_that_are_missing_in_a_row_are_no_fault_of_each(tmp_path):
    """Another disk may be mounted there; a few may have been removed."""
    write_files(tmp_path, pngs(*(f"{number:02}.png" for number in range(10))))
    source = opened(tmp_path)
    items = list(source.items())
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "of-another-disk.png").write_bytes(png())
    found = [failure(source, item) for item in items]
    assert [isinstance(error, SourceError) for error in found] == [False] * 7 + [True] * 3
    assert "8 images in a row cannot be read" in str(found[7])
    (tmp_path / "05.png").write_bytes(png(5))
    assert source.read(items[5]) == png(5)
    assert reason(failure(source, items[6])) == ("read", "file not found")


@pytest.mark.parametrize("gone", ["empty", "missing", "forbidden"])
def test_a_mount_point_without_its_disk_is_no_fault_of_an_image(tmp_path, monkeypatch, gone):
    place = tmp_path / "photos"
    write_files(place, pngs("a.png", "b.png"))
    listed = [(pickle.loads(pickle.dumps(source)), next(source.items())) for source in sources(place)]
    for file in place.iterdir():
        file.unlink()
    if gone == "missing":
        place.rmdir()
    if gone == "forbidden":  # Root may read everything, so nothing can be forbidden to it.
        monkeypatch.setattr(os, "scandir", forbid)
        monkeypatch.setattr(disk, "read_file", forbid)
    for source, item in listed:
        error = failure(source, item)
        assert isinstance(error, SourceError)
        assert "on this machine: is it mounted?" in str(error)
        assert "write to another --to" in str(error)


def forbid(path):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_what_was_not_there_when_it_was_listed_is_to_blame_itself(tmp_path):
    """A list may name what never was, also in a folder that never was."""
    source = ListSource([f"{tmp_path}/never/was.png"])
    [item] = source.items()
    assert reason(failure(source, item)) == ("read", "file not found")


class Flaky:
    """Lets some calls of a function fail."""

    def __init__(self, function, *failures):
        self._function, self.failures = function, list(failures)

    def __call__(self, *given, **named):
        if self.failures:
            raise self.failures.pop(0)
        return self._function(*given, **named)


def eio(count=1):
    return [OSError(errno.EIO, "Input/output error") for _ in range(count)]


@pytest.mark.parametrize("function", ["scandir", "stat"])
def test_listing_goes_on_after_a_failure_that_passes(tmp_path, monkeypatch, function):
    write_files(tmp_path, pngs("a/x.png", "b/y.png", "z.png"))
    source = FolderSource(str(tmp_path))
    expected = list(source.items())
    monkeypatch.setattr(os, function, Flaky(getattr(os, function), *eio(2)))
    assert list(source.items()) == expected
    monkeypatch.setattr(os, function, Flaky(getattr(os, function), *eio(1000)))
    with pytest.raises(SourceError, match=r"cannot list .*Input/output error.*same command"):
        list(source.items())


def test_a_folder_that_is_removed_while_it_is_listed_has_nothing(tmp_path):
    write_files(tmp_path, pngs("a/x.png", "b/y.png", "c/z.png"))
    items = FolderSource(str(tmp_path)).items()
    next(items)
    shutil.rmtree(tmp_path / "b")
    assert [item.ref for item in items] == ["c/z.png"]


def make_zip(place):
    with zipfile.ZipFile(place / "t.zip", "w") as archive:
        for number in range(4):
            archive.writestr(f"{number}.png", png(number))
    return place / "t.zip", {}


def make_table(suffix):
    def make(place):
        table = pa.table({"image": [png(number) for number in range(4)], "name": list("abcd")})
        if suffix == "parquet":
            pq.write_table(table, place / "t.parquet", row_group_size=1)
        else:
            feather.write_feather(table, place / "t.arrow", chunksize=1, compression="uncompressed")
        return place / f"t.{suffix}", {}

    return make


def make_list(place):
    write_files(place, pngs(*(f"{number}.png" for number in range(4))))
    write_files(place, {"t.txt": "\n".join(f"{number}.png" for number in range(4))})
    return place / "t.txt", {}


FILES = {"zip": make_zip, "parquet": make_table("parquet"), "arrow": make_table("arrow")}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_many_images_that_cannot_be_read_for_a_while(tmp_path, monkeypatch, kind):
    """It fails for a reader at once, who reads the same image when it is back; what failed is opened again."""
    location, settings = FILES[kind](tmp_path)
    source = opened(location, **settings)
    items = list(source.items())
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(items[0]) == png(0)
    flaky = Flaky(os.pread, *eio())
    monkeypatch.setattr(source_file.os, "pread", flaky)
    for number in (3, 1, 2):
        flaky.failures = eio()
        with pytest.raises(SourceError, match=r"Input/output error.*same command"):
            copy.read(items[number])
        assert copy.read(items[number]) == png(number)


@pytest.mark.parametrize("kind", [*FILES, "list"])
def test_a_listing_of_a_file_goes_on_where_it_failed(tmp_path, monkeypatch, kind):
    location, settings = (FILES | {"list": make_list})[kind](tmp_path)
    source = opened(location, **settings)
    expected = list(source.items())
    flaky = Flaky(os.pread, *eio(2))
    monkeypatch.setattr(source_file.os, "pread", flaky)
    assert list(source.items()) == expected
    assert not flaky.failures
    flaky.failures = eio(1000)
    with pytest.raises(SourceError, match="same command"):
        list(source.items())


def test_a_dataset_that_cannot_be_listed_for_a_while_is_not_damaged(tmp_path, monkeypatch):
    write_files(tmp_path, {f"classes/{name}": data for name, data in pngs("a/1.png", "b/2.png").items()})
    sightline.ingest(tmp_path / "classes", "d", workspace=tmp_path / "w", workers=1)
    source = opened(tmp_path / "w/datasets/d")
    expected = list(source.items())
    flaky = Flaky(Folder.open_file, *eio(2))
    monkeypatch.setattr(Folder, "open_file", lambda self, name: flaky(self, name))
    assert list(source.items()) == expected


def test_a_database_that_refuses_is_no_fault_of_a_row(tmp_path):
    with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("create table photos (id integer, image blob)")
        database.executemany("insert into photos values (?, ?)", [(1, png(1)), (2, png(2))])
    source = opened(f"sqlite:///{tmp_path}/p.db", query="select * from photos", key="id")
    first, second = source.items()
    with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("delete from photos where id = 1")
    assert reason(failure(source, first)) == ("read", "row not found")
    (tmp_path / "p.db").rename(tmp_path / "away.db")
    fresh = pickle.loads(pickle.dumps(source))
    assert isinstance(failure(fresh, second), SourceError)
    with pytest.raises(SourceError, match="the database refused"):
        list(fresh.items())
    (tmp_path / "away.db").rename(tmp_path / "p.db")
    assert fresh.read(second) == png(2)


def test_two_rows_with_the_same_key_are_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("create table photos (id integer, image blob)")
        database.executemany("insert into photos values (?, ?)", [(1, png(1)), (2, png(2)), (1, png(3))])
    url = f"sqlite:///{tmp_path}/p.db"
    with pytest.raises(FormatError, match=r"have the key '1' in column 'id': row 0 and row 2\..*source\.key"):
        list(opened(url, query="select * from photos", key="id").items())


def test_an_object_that_was_removed_is_rejected_and_a_bucket_that_is_gone_is_not(bucket):
    url = bucket.write(pngs("in/a.png", "in/b.png"))
    both = [opened(f"{url}/in"), opened([f"{url}/in/a.png"])]
    listed = [(source, next(source.items())) for source in both]
    assert all(item.version for _, item in listed)
    bucket.remove("in/a.png")
    assert [reason(failure(*one)) for one in listed] == [("read", "file not found")] * 2
    bucket.clear()
    for source, item in listed:
        assert isinstance(failure(source, item), SourceError)


@pytest.mark.parametrize("table", [False, True])
def test_a_listed_object_that_changed_has_another_version(bucket, tmp_path, table):
    url = bucket.write(pngs(*(f"{number:03}.png" for number in range(300))))
    urls = [f"{url}/{number:03}.png" for number in range(300)]
    pq.write_table(pa.table({"path": urls}), tmp_path / "t.parquet")
    source = opened(tmp_path / "t.parquet") if table else opened(urls)
    before = list(source.items())
    assert [item.uri for item in before] == urls
    bucket.write({"207.png": b"longer than it was" * 100})
    after = list(source.items())
    assert [n for n in range(300) if before[n] != after[n]] == [207]
    assert after[207] == Item(before[207].image_id, urls[207], "1800", before[207].ref)


class Forbidding:
    """A bucket that can be listed and asked for, and whose objects may not be read."""

    def __init__(self, filesystem, forbidden):
        self._filesystem, self._forbidden = filesystem, forbidden

    def __getattr__(self, name):
        return getattr(self._filesystem, name)

    def open_input_file(self, path):
        if path.rpartition("/")[2] in self._forbidden:
            raise OSError("AWS Error ACCESS_DENIED during GetObject operation: Access Denied")
        return self._filesystem.open_input_file(path)


def test_objects_that_may_not_be_read_any_more_are_no_fault_of_each(bucket):
    url = bucket.write(pngs(*(f"{number}.png" for number in range(6))))
    for source in (opened(url), opened([f"{url}/{number}.png" for number in range(6)])):
        first, *others = source.items()
        folder = source._folder if isinstance(source, FolderSource) else source._reader._bucket(url)
        names = {f"{number}.png" for number in range(6)}
        for revoked_at_once in (True, False):
            forbidden = set(names) if revoked_at_once else {"3.png"}
            folder.__dict__["filesystem"] = Forbidding(Folder.open(url).filesystem, forbidden)
            if not revoked_at_once:
                assert source.read(first) == png(0)
                assert reason(failure(source, others[2])) == ("read", "file not readable"), "it alone is forbidden"
                forbidden |= names
            for item in others * 2:
                error = failure(source, item)
                assert isinstance(error, SourceError)
                assert "read" in str(error)
            folder._readable.clear()


def test_an_object_that_was_read_and_removed_shows_nothing(bucket):
    url = bucket.write(pngs(*(f"{number}.png" for number in range(4))))
    source = opened(url)
    items = list(source.items())
    source.read(items[0])
    bucket.remove("0.png")
    bucket.remove("1.png")
    assert reason(failure(source, items[1])) == ("read", "file not found")
    source.read(items[2])
    assert reason(failure(source, items[1])) == ("read", "file not found")
