"""Lists of paths and URLs, in Python and in text files."""

import os
import pickle
import tracemalloc
from pathlib import Path

import pytest
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.detection.item import id_of
from sightline.detection.sources.listing import ListFileSource, ListSource
from sightline.errors import ConfigError, FormatError


def test_python_list_of_paths_and_urls(tmp_path, bucket, monkeypatch):
    files = write_files(tmp_path / "in", pngs("a.png", "b/c.jpg", "no-suffix"))
    url = bucket.write(pngs("x/y.png"))
    monkeypatch.chdir(files)
    source = opened(["a.png", Path("b/c.jpg"), f"{files}/no-suffix", f"file://{files}/./a.png", f"{url}/x/y.png"])
    items = list(source.items())
    assert [item.uri for item in items] == [f"{files}/{n}" for n in ("a.png", "b/c.jpg", "no-suffix", "a.png")] + [
        f"{url}/x/y.png"
    ]
    assert items[0] == items[3]
    assert items[0].image_id == id_of(items[0].uri)
    assert items[0].version.startswith(f"{len(png(0))}-")
    assert items[4].version == str(len(png(0))), "this kind of bucket tells no times"
    assert list(contents(source).values()) == [png(0), png(1), png(2), png(0)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("missing.png", ("read", "file not found")),
        ("a.png/b.png", ("read", "file not found")),
        ("folder", ("path", "file not readable")),
        ("nul\0.png", ("path", "file not readable")),
        ("\ud800.png", ("read", "file not found")),
        ("", ("path", "file not readable")),
        ("/dev/zero", ("path", "file not readable")),
        ("http://host/x.png", ("path", "not a path or bucket")),
        ("https://host/x.png?sig=SECRET", ("path", "not a path or bucket")),
        ("ftp://me:SECRET@host/x.png", ("path", "not a path or bucket")),
        ("HTTPS://host/x.png", ("path", "not a path or bucket")),
        ("postgresql://me:SECRET@host/x", ("path", "not a path or bucket")),
        ("s3://KEY:SECRET@bucket/x.png", ("path", "credentials in a listed URL")),
        ("s3://bucket/x.png?access_key=SECRET", ("path", "credentials in a listed URL")),
        ("memory://nowhere/x.png", ("read", "file not found")),
        ("memory://nowhere", ("path", "path leads out of the source")),
    ],
)
def test_what_cannot_be_opened_says_why(tmp_path, entry, expected):
    write_files(tmp_path, pngs("a.png", "folder/x.png"))
    source = ListSource([entry, "a.png"], str(tmp_path))
    first, second = source.items()
    assert "SECRET" not in repr([first, source.name])
    found = contents(source)
    assert found[second.uri] == png(0)
    assert reason(found[first.uri]) == expected
    assert "SECRET" not in str(found[first.uri])


def test_only_paths_and_buckets_are_opened(tmp_path):
    source = ListSource(["https://host/x.png"], str(tmp_path))
    assert "only paths and bucket URLs are opened" in str(contents(source)["https://host/x.png"])


def test_list_file(tmp_path):
    write_files(tmp_path, pngs("in/a.png", "in/b c.png", "out/d.png", "in/#e.png", "in/schön.png"))
    lines = ["\ufeff# my images", "", "  a.png  ", "b c.png\r", f"{tmp_path}/out/d.png", "../out/d.png", "./#e.png"]
    write_files(tmp_path, {"in/list.txt": "\n".join([*lines, "schön.png"])})
    source = opened(tmp_path / "in/list.txt")
    assert source.name == f"{tmp_path}/in/list.txt"
    expected = ["in/a.png", "in/b c.png", "out/d.png", "out/d.png", "in/#e.png", "in/schön.png"]
    assert [item.uri for item in source.items()] == [f"{tmp_path}/{name}" for name in expected]
    found = contents(source)
    assert [found[f"{tmp_path}/{name}"] for name in expected] == [png(n) for n in (0, 1, 2, 2, 3, 4)]


def test_list_file_with_a_root(tmp_path, bucket):
    url = bucket.write(pngs("deep/a.png", "deep/b.png"))
    write_files(tmp_path, {"all.LST": "a.png\nx/../b.png\n"})
    source = opened(str(tmp_path / "all.LST"), root=f"{url}/deep")
    assert contents(source) == {f"{url}/deep/a.png": png(0), f"{url}/deep/b.png": png(1)}
    assert source.name == f"{tmp_path}/all.LST from {url}/deep"
    assert source.name != opened(str(tmp_path / "all.LST")).name


def test_list_in_a_bucket(bucket):
    url = bucket.write(pngs("in/a.png", "in/b.png") | {"in/list.txt": b"a.png\n\nb.png"})
    assert contents(opened(f"{url}/in/list.txt")) == {f"{url}/in/a.png": png(0), f"{url}/in/b.png": png(1)}


def test_names_that_are_not_utf8_in_a_list(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    write_files(tmp_path, {name: png(), "list.txt": b"caf\xe9.png\n"})
    for source in (ListFileSource(f"{tmp_path}/list.txt"), ListSource([name], str(tmp_path))):
        assert contents(source) == {f"{tmp_path}/caf\\udce9.png": png()}


def test_file_that_is_no_list(tmp_path):
    write_files(tmp_path, {"blob.txt": b"\0" * 200_000})
    with pytest.raises(FormatError, match="one path or URL a line"):
        list(opened(tmp_path / "blob.txt").items())
    with pytest.raises(ConfigError, match="empty"):
        opened([])


def test_name_of_a_list_is_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, same, other = ListSource(["a", "b"]), ListSource(["./a", f"{tmp_path}/b"]), ListSource(["b", "a"])
    assert one.name == same.name != other.name
    monkeypatch.chdir("/")
    assert ListSource(["a", "b"]).name != one.name
    assert ListSource(["/x/a.png"]).name == "/x/a.png"


def test_credentials_of_the_root_reach_workers_only(bucket):
    bucket.write(pngs("a.png"))
    root = bucket.url.replace("memory://", "memory://KEY:SECRET@")
    source = ListSource(["a.png"], root)
    assert "SECRET" not in repr([*source.items(), source.name])
    assert b"SECRET" in pickle.dumps(source)


def test_another_machine_is_noticed(tmp_path):
    write_files(tmp_path, pngs("in/a.png") | {"list.txt": "in/a.png\n", "urls.txt": "s3://bucket/a.png\n"})
    local = [ListSource(["in/a.png"], str(tmp_path)), ListFileSource(f"{tmp_path}/list.txt")]
    remote = [ListSource(["s3://bucket/a.png"], str(tmp_path)), ListFileSource(f"{tmp_path}/urls.txt")]
    missing = ListSource([f"{tmp_path}/never/was.png"])
    copies = [pickle.loads(pickle.dumps(source)) for source in [*local, *remote, missing]]
    assert [source.is_visible() for source in copies] == [True] * 5
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert [source.is_visible() for source in copies] == [False, False, True, True, False]


def test_long_list_streams(tmp_path):
    with open(tmp_path / "list.txt", "w") as file:
        file.writelines(f"memory://bucket/some/long/folder/name/image-{number:08}.jpg\n" for number in range(20_000))
    source = ListFileSource(f"{tmp_path}/list.txt")
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 20_000
    pickle.dumps(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
