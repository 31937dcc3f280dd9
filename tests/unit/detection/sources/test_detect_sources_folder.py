"""Folders and patterns, on a disk and in a bucket."""

import os
import time
import tracemalloc

import pytest
from pyarrow import fs as pafs
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.config import SourceConfig
from sightline.data.storage import File, Folder
from sightline.detection.item import id_of
from sightline.detection.sources import sorted_names
from sightline.detection.sources.factory import open_source
from sightline.detection.sources.folder import FolderSource
from sightline.detection.sources.glob import GlobSource, has_wildcard, split_pattern
from sightline.detection.sources.names import _as_uri, from_ref, local_path, public_url, split_query, to_ref
from sightline.errors import ConfigError, ImageError, NotFoundError, StorageError
from sightline.workspace import Workspace

ODD_NAMES = ["new\nline.png", 'it\'s "q".png', "snow☃.png", "100%.png", "%41.png", "a b.PNG", "back\\slash.jpg"]


def test_folder_gives_every_image_once(tmp_path):
    files = pngs("b.jpg", "a/x.PNG", "a/b/c.tiff", "z.webp")
    write_files(tmp_path, files | {"notes.txt": "no", ".hidden.png": png(), ".git/x.png": png(), "a/none": png()})
    found = contents(FolderSource(str(tmp_path)))
    assert found == {f"{tmp_path}/{name}": data for name, data in files.items()}
    assert list(found) == [f"{tmp_path}/{name}" for name in ("a/b/c.tiff", "a/x.PNG", "b.jpg", "z.webp")]
    walked = [f"{tmp_path}/{f.name}" for f in Folder.open(tmp_path).walk() if isinstance(f, File)]
    assert [uri for uri in walked if uri in found] == list(found)


def test_item_names_path_and_version(tmp_path):
    write_files(tmp_path, pngs("a/x.png"))
    [item] = FolderSource(str(tmp_path)).items()
    status = (tmp_path / "a/x.png").stat()
    assert item.uri == f"{tmp_path}/a/x.png"
    assert item.image_id == id_of(item.uri)
    assert item.version == f"{status.st_size}-{status.st_mtime_ns}"
    os.utime(tmp_path / "a/x.png", ns=(1, 1))
    [touched] = FolderSource(str(tmp_path)).items()
    assert touched.image_id == item.image_id
    assert touched.version == f"{status.st_size}-1"


@pytest.mark.parametrize(
    "spelling", ["{}/photos", "{}/photos/", "{}/./photos", "{}/photos/../photos", "file://{}/photos"]
)
def test_ids_do_not_depend_on_spelling(tmp_path, spelling):
    write_files(tmp_path / "photos", pngs("x.png"))
    source = FolderSource(spelling.format(tmp_path))
    assert source.name == f"{tmp_path}/photos"
    assert [item.uri for item in source.items()] == [f"{tmp_path}/photos/x.png"]


def test_relative_folder_is_absolute(tmp_path, monkeypatch):
    write_files(tmp_path / "photos", pngs("x.png"))
    monkeypatch.chdir(tmp_path)
    source = FolderSource("photos")
    monkeypatch.chdir("/")
    assert list(contents(source)) == [f"{tmp_path}/photos/x.png"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_survive(tmp_path, name):
    write_files(tmp_path, {name: png()})
    assert contents(FolderSource(str(tmp_path))) == {f"{tmp_path}/{name}": png()}


def test_names_that_are_not_utf8_survive(tmp_path):
    bad, looks_bad = os.fsdecode(b"d\xff/caf\xe9.png"), "d\\udcff/caf\\udce9.png"
    write_files(tmp_path, {bad: png(1), looks_bad: png(2)})
    source = FolderSource(str(tmp_path))
    items = list(source.items())
    assert [item.uri for item in items] == [f"{tmp_path}/{looks_bad}"] * 2
    assert len({item.image_id for item in items}) == 2  # Only the raw names tell them apart.
    assert sorted(map(source.read, items)) == sorted([png(1), png(2)])
    (tmp_path / "d\\udcff/caf\\udce9.png").unlink()
    contents(FolderSource(str(tmp_path)))
    contents(FolderSource(f"{tmp_path}/" + os.fsdecode(b"d\xff")))


@pytest.mark.parametrize("name", ["plain", "50%", "%25", "", "ä/ö", os.fsdecode(b"\xff%\xfe"), "a\0b", *ODD_NAMES])
def test_refs_lead_back(name):
    ref = to_ref(name)
    ref.encode()
    assert "\0" not in ref
    assert from_ref(ref) == name


def test_what_must_not_be_followed_is_listed_and_refused(tmp_path):
    root = write_files(tmp_path / "root", pngs("good.png", "in/real.png"))
    write_files(tmp_path / "outside", pngs("secret.png"))
    (root / "out.png").symlink_to(tmp_path / "outside/secret.png")
    (root / "inside.png").symlink_to(root / "in/real.png")
    (root / "dangling.png").symlink_to(root / "nothing.png")
    (root / "folder.png").symlink_to(root / "in")
    (root / "linked").symlink_to(tmp_path / "outside")
    (root / "notes").symlink_to(tmp_path / "outside/secret.png")
    os.mkfifo(root / "pipe.png")
    source = FolderSource(str(root))
    found = {uri.removeprefix(f"{root}/"): data for uri, data in contents(source).items()}
    assert found.pop("good.png") == png(0)
    assert found.pop("inside.png") == found.pop("in/real.png") == png(1)
    assert {name: reason(error) for name, error in found.items()} == {
        "out.png": ("path", "path leads out of the source"),
        "dangling.png": ("read", "file not found"),
        "folder.png": ("path", "file not readable"),
        "pipe.png": ("path", "file not readable"),
    }
    versions = {item.ref: item.version for item in source.items()}
    assert versions["inside.png"] == versions["in/real.png"] != ""
    assert {versions[name] for name in found} == {""}


def test_file_that_is_gone_or_swapped_for_a_link(tmp_path):
    write_files(tmp_path / "root", pngs("a.png", "b.png"))
    source = FolderSource(str(tmp_path / "root"))
    first, second = source.items()
    (tmp_path / "root/a.png").unlink()
    (tmp_path / "root/b.png").unlink()
    (tmp_path / "root/b.png").symlink_to("/etc/passwd")
    for item, stage in ((first, "read"), (second, "path")):
        with pytest.raises(ImageError) as caught:
            source.read(item)
        assert caught.value.stage == stage


def test_root_may_be_a_link_and_unseen_root_is_not_visible(tmp_path):
    write_files(tmp_path / "real", pngs("a.png"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    source = FolderSource(str(tmp_path / "link"))
    assert contents(source) == {f"{tmp_path}/link/a.png": png(0)}
    (tmp_path / "link").unlink()
    assert not source.is_visible()
    with pytest.raises(StorageError, match="cannot list"):
        list(source.items())


def test_folder_in_a_bucket(bucket):
    files = pngs("b.jpg", "a/x.PNG", "a/b/snow☃.tiff", "z z.webp")
    bucket.write(
        {f"in/{name}": data for name, data in files.items()} | {"in/t.txt": b"", "in/.h.png": b"", "o.png": b""}
    )
    found = contents(FolderSource(f"{bucket.url}/in/"))
    assert found == {f"{bucket.url}/in/{name}": data for name, data in files.items()}
    versions = [item.version for item in FolderSource(f"{bucket.url}/in").items()]
    assert [int(version.partition("-")[0]) for version in versions] == [len(data) for data in found.values()]


def test_a_large_flat_folder_is_sorted_in_bounded_memory(tmp_path, monkeypatch):
    """In the same order as a small one; what does not fit is merged from a file without a name."""
    monkeypatch.setattr(sorted_names, "_RUN_NAMES", 500)
    monkeypatch.setattr(sorted_names, "_READ_BYTES", 1000)
    odd = [*ODD_NAMES, "a.png", "a!.png", "a-b.png", os.fsdecode(b"caf\xe9.png"), "caf\ue000.png", "\U0001f600.png"]
    names = [f"{number * 7919 % 20_000:05}-with-a-long-name-of-some-image.jpg" for number in range(20_000)] + odd
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "01000-a-folder").mkdir()
    (tmp_path / "01000-a-folder/x.png").touch()
    scratch = tmp_path.with_name("scratch")
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    source = FolderSource(str(tmp_path))
    next(source.items())
    tracemalloc.start()
    count = sum(1 for _ in source.items())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == len(names) + 1
    assert peak < 1_000_000
    assert [from_ref(item.ref) for item in source.items()] == sorted([*names, "01000-a-folder/x.png"])
    assert list(scratch.iterdir()) == []


class LargeBucket:
    """A bucket with many objects in one folder."""

    def __init__(self, names):
        self._names = names

    def get_file_info(self, selector):
        begin = f"{selector.base_dir}/"
        below = {name.removeprefix(begin) for name in self._names if name.startswith(begin)}
        folders = {name.partition("/")[0] for name in below if "/" in name}
        kinds = [(name, pafs.FileType.File) for name in below if "/" not in name]
        kinds += [(name, pafs.FileType.Directory) for name in folders]
        return [pafs.FileInfo(begin + name, kind, size=1, mtime_ns=2) for name, kind in kinds]


def test_a_large_flat_folder_of_a_bucket_is_sorted_in_bounded_memory(bucket, monkeypatch):
    """What Arrow has listed is not held while images are looked at, and what is sorted does not have to fit."""
    monkeypatch.setattr(sorted_names, "_RUN_NAMES", 500)
    monkeypatch.setattr(sorted_names, "_READ_BYTES", 1000)
    odd = ["new\nline.png", "a.png", "a!.png", "a-b.png", "caf\xe9.png", "\U0001f600.png", "01000-a-folder/x.png"]
    names = [f"{number * 7919 % 20_000:05}-with-a-long-name-of-some-image.jpg" for number in range(20_000)] + odd
    source = FolderSource(bucket.url)
    root = source._folder.path
    source._folder.__dict__["filesystem"] = LargeBucket([f"{root}/{name}" for name in [*names, "a.txt", ".png"]])
    tracemalloc.start()
    items = source.items()
    next(items)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    assert sum(1 for _ in items) == len(names) - 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 1_000_000
    assert peak < 1_000_000
    listed = list(source.items())
    assert [from_ref(item.ref) for item in listed] == sorted(names)
    assert {item.version for item in listed} == {"1-2"}


def test_many_files_stream(tmp_path):
    """Names of one directory are in memory; items never are."""
    for number in range(20):
        (tmp_path / f"d{number:02}").mkdir()
        for name in range(1000):
            (tmp_path / f"d{number:02}" / f"image-with-a-long-name-{name:06}.jpg").touch()
    source = FolderSource(str(tmp_path))
    next(source.items())
    tracemalloc.start()
    began = time.process_time()
    assert sum(1 for _ in source.items()) == 20_000
    took = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert took < 10  # A sixth of a second where nothing is traced.


PATTERN_FILES = ["a.jpg", "b.png", "x/a.jpg", "x/y/a.jpg", "x/y/z/b.JPG", "x/y/frame.dat", "x1/a.jpg", "x2/[1].png"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jpg", ["a.jpg"]),
        ("*", ["a.jpg", "b.png"]),
        ("**", ["a.jpg", "b.png", "x/a.jpg", "x/y/a.jpg", "x/y/z/b.JPG", "x1/a.jpg", "x2/[1].png"]),
        ("**/*.jpg", ["a.jpg", "x/a.jpg", "x/y/a.jpg", "x1/a.jpg"]),
        ("**/y/**/*", ["x/y/a.jpg", "x/y/z/b.JPG"]),
        ("x/**/a.jpg", ["x/a.jpg", "x/y/a.jpg"]),
        ("x?/*", ["x1/a.jpg", "x2/[1].png"]),
        ("x[12]/*.jpg", ["x1/a.jpg"]),
        ("x[!1]/*", ["x2/[1].png"]),
        ("*/y/*.dat", ["x/y/frame.dat"]),
        ("x/y/*.d*", []),
        ("**/**/b.*", ["b.png", "x/y/z/b.JPG"]),
        ("*/a.jpg", ["x/a.jpg", "x1/a.jpg"]),
    ],
)
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_pattern(tmp_path, bucket, place, pattern, expected):
    files = pngs(*PATTERN_FILES)
    root = bucket.write(files) if place == "bucket" else str(write_files(tmp_path, files | {".h/a.jpg": b""}))
    found = contents(GlobSource(f"{root}/{pattern}"))
    assert found == {f"{root}/{name}": files[name] for name in expected}
    assert list(found) == [f"{root}/{name}" for name in expected]


def test_empty_parts_of_a_pattern_mean_nothing(tmp_path):
    write_files(tmp_path, pngs("x/a.jpg"))
    assert list(contents(GlobSource(f"{tmp_path}/.//x/./*.jpg"))) == [f"{tmp_path}/x/a.jpg"]


def test_pattern_is_recognised_after_files_of_that_name(tmp_path, monkeypatch):
    write_files(tmp_path, pngs("a1.png", "a[1].png"))
    monkeypatch.chdir(tmp_path)
    settings, workspace = SourceConfig(), Workspace(tmp_path / "w")
    assert open_source("a[1].png", settings, workspace)[1] == "a single image"
    source, why = open_source("a[12].png", settings, workspace)
    assert why == "images that match a pattern"
    assert contents(source) == {f"{tmp_path}/a1.png": png(0)}
    assert source.name == f"{tmp_path}/a[12].png"
    with pytest.raises(NotFoundError, match="does not exist"):
        opened("nowhere/*.png")
    with pytest.raises(ConfigError, match="behind a wildcard"):
        opened("*/../x.png")


def test_question_mark_in_a_bucket_is_a_wildcard(bucket):
    files = pngs("a1/x1.png", "a2/x2.png", "a1/xx1.png")
    source = opened(f"{bucket.write(files)}/a?/x?.png")
    assert list(contents(source)) == [f"{bucket.url}/a1/x1.png", f"{bucket.url}/a2/x2.png"]


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("photos/2024/**/*.jpg", ("photos/2024", ("**", "*.jpg"))),
        ("*.jpg", (".", ("*.jpg",))),
        ("/*.jpg", ("/", ("*.jpg",))),
        ("s3://bucket/a*/x?.png", ("s3://bucket", ("a*", "x?.png"))),
        ("s3://b/a/*.jpg?region=eu-west-1", ("s3://b/a?region=eu-west-1", ("*.jpg",))),
    ],
)
def test_root_of_a_pattern(pattern, parts):
    assert has_wildcard(pattern)
    assert split_pattern(pattern) == parts


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://KEY:SECRET@bucket/a/?token=x", "s3://bucket/a"),
        ("s3://KEY:SEC/RET@bucket/a", "s3://bucket/a"),
        ("s3://bucket/mail@home/what?.png", "s3://bucket/mail@home/what?.png"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("abfss://c:SECRET@account/a", "abfss://account/a"),
        ("https://me:pw@host/x.png?sig", "https://host/x.png"),
    ],
)
def test_urls_are_shown_without_credentials(url, shown):
    assert public_url(url) == shown


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("s3://bucket/my photos/ä", "s3://bucket/my%20photos/%C3%A4"),
        ("s3://KEY:SEC/RET@bucket/my%20photos?region=eu west", "s3://KEY:SEC/RET@bucket/my%20photos?region=eu west"),
        ("memory://bucket/my photos", "memory://bucket/my photos"),
    ],
)
def test_arrow_gets_urls_that_it_can_parse(url, uri):
    assert _as_uri(url) == uri


def test_local_path_follows_links_before_dots(tmp_path):
    (tmp_path / "far/away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far/away")
    assert local_path(f"{tmp_path}/link/../x.png") == f"{tmp_path}/far/x.png"
    assert split_query("s3://b/x?.png") == ("s3://b/x?.png", "")
    assert not has_wildcard("s3://b/x.png?region=eu")
