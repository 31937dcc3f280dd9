"""Images that are listed: in Python, in a text file, or a single one."""

import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from source_builders import contents, opened, png, pngs, reason, write_files
from source_checks import everything

from sightline.config import SourceConfig
from sightline.detection.item import id_of
from sightline.detection.sources.factory import open_source
from sightline.errors import ConfigError, FormatError, ImageError, NotFoundError
from sightline.workspace import Workspace

NAMES = ["b.png", "a/x.jpg", "snow☃.png", "it's \"q\" 50%.png"]


def as_list(root: Path, names: list[str]) -> object:
    return [root / names[0], *(f"{root}/{name}" for name in names[1:])]


def as_list_from_root(root: Path, names: list[str]) -> object:
    return list(names)


def as_file(root: Path, names: list[str]) -> object:
    text = "\ufeff" + "\r\n".join(["# what to look at", "", *(f"  {name}\t" for name in names)])
    write_files(root, {"list.txt": text})
    return root / "list.txt"


def as_file_without_last_line_end(root: Path, names: list[str]) -> object:
    write_files(root, {"list.lst": "\n".join(f"file://{root}/{name}" for name in names)})
    return str(root / "list.lst")


@pytest.mark.parametrize("listed", [as_list, as_list_from_root, as_file, as_file_without_last_line_end])
def test_listed_images_are_read_in_order(tmp_path, listed):
    files = pngs(*NAMES)
    write_files(tmp_path, files)
    source = listed(tmp_path, NAMES)
    found = everything(opened(source, **({"root": str(tmp_path)} if listed is as_list_from_root else {})), tmp_path)
    assert found == files
    assert list(found) == NAMES


def test_names_with_newlines_and_other_bytes(tmp_path):
    odd = os.fsdecode(b"caf\xe9.png")
    files = pngs("new\nline.png", odd, "-rf.png", "~tilde.png", "#1.png")
    write_files(tmp_path, files)
    found = list(everything(opened(list(files), root=str(tmp_path))).values())
    assert found == list(files.values())
    write_files(tmp_path, {"list.txt": "./#1.png\n"})
    with open(tmp_path / "list.txt", "ab") as file:
        file.write(b"caf\xe9.png\n")
    assert list(everything(opened(tmp_path / "list.txt")).values()) == [files["#1.png"], files[odd]]


def test_lone_surrogates_of_a_program_become_valid_text(tmp_path):
    """JSON can name what no disk can; it is an image that is not found."""
    [found] = everything(opened(["\ud800.png"], root=str(tmp_path))).values()
    assert reason(found) == ("read", "file not found")


def test_same_image_has_the_same_id_however_it_is_listed(tmp_path, monkeypatch):
    write_files(tmp_path, pngs("a/x.png") | {"a/list.txt": "x.png\n./x.png\n../a/x.png\n"})
    monkeypatch.chdir(tmp_path)
    spellings = ["a/x.png", f"{tmp_path}/a/../a/x.png", f"file://{tmp_path}/a/x.png", Path("a/x.png")]
    sources = [*(opened([spelling]) for spelling in spellings), opened("a/list.txt"), opened("a"), opened("a/x.png")]
    assert {item.image_id for source in sources for item in source.items()} == {id_of(f"{tmp_path}/a/x.png")}


def test_version_is_that_of_the_file(tmp_path):
    write_files(tmp_path, pngs("x.png"))
    [before] = opened([tmp_path / "x.png"]).items()
    write_files(tmp_path, {"x.png": png(7) + b"longer"})
    [after] = opened([tmp_path / "x.png"]).items()
    assert before.image_id == after.image_id
    assert before.version != after.version


def test_what_cannot_be_read_says_why(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nothing.png")
    write_files(tmp_path, {"file": b""})
    names = ["pipe.png", "folder.png", "dangling.png", "missing.png", "file/x.png", "nul\0.png", "x" * 5000]
    found = everything(opened(names, root=str(tmp_path)), tmp_path)
    assert [reason(error) for error in found.values()] == [
        ("read", "file not readable"),
        ("read", "file not readable"),
        ("read", "file not found"),
        ("read", "file not found"),
        ("read", "file not found"),
        ("read", "file not readable"),
        ("read", "file not readable"),
    ]
    assert {item.version for item in opened(names, root=str(tmp_path)).items()} == {""}


URLS = [
    ("http://host/x.jpg", "http://host/x.jpg", "not a path or bucket"),
    ("https://me:SECRET@host/x.jpg?sig=SECRET", "https://host/x.jpg", "not a path or bucket"),
    ("HTTPS://host/x.jpg", "HTTPS://host/x.jpg", "not a path or bucket"),
    ("ftp://host/x.jpg", "ftp://host/x.jpg", "not a path or bucket"),
    ("postgresql://me:SECRET@host/x.jpg", "postgresql://host/x.jpg", "not a path or bucket"),
    ("s3://KEY:SECRET@bucket/x.jpg", "s3://bucket/x.jpg", "credentials in a listed URL"),
    ("s3://bucket/x.jpg?access_key=SECRET", "s3://bucket/x.jpg", "credentials in a listed URL"),
    ("memory://bucket/../x.jpg", "memory://bucket/../x.jpg", "path leads out of the source"),
]


@pytest.mark.parametrize(("url", "uri", "expected"), URLS, ids=[url for url, *_ in URLS])
@pytest.mark.parametrize("in_file", [False, True])
def test_urls_that_are_not_opened(tmp_path, url, uri, expected, in_file):
    write_files(tmp_path, {"list.txt": url + "\n"})
    source = opened(tmp_path / "list.txt" if in_file else [url])
    [(found, error)] = everything(source).items()
    assert found == uri
    assert reason(error) == ("path", expected)
    assert "SECRET" not in f"{source.name} {source!r} {list(source.items())} {error} {pickle.dumps(list(source.items()))}"


def test_bucket_that_is_not_there_rejects_its_images_only(tmp_path, bucket):
    write_files(tmp_path, pngs("x.png"))
    url = bucket.write(pngs("in/y.png", "in/z z.png"))
    listed = [f"{url}/in/y.png", tmp_path / "x.png", f"{url}/in/z z.png", f"{url}/none.png"]
    *good, missing = everything(opened(listed)).values()
    assert good == [png(0), png(0), png(1)]
    assert reason(missing) == ("read", "file not found")


def test_list_in_a_bucket_begins_at_its_folder(bucket):
    url = bucket.write(pngs("in/y.png", "in/z.png") | {"in/list.txt": b"y.png\n./z.png\n../in/y.png\n\xff.png\n"})
    found = everything(opened(f"{url}/in/list.txt"), f"{url}/in")
    assert list(found) == ["y.png", "z.png", "../in/y.png", "\\udcff.png"]
    assert list(found.values())[:2] == [png(0), png(1)]
    assert reason(found["../in/y.png"]) == ("path", "path leads out of the source")
    assert isinstance(found["\\udcff.png"], ImageError)


def test_single_images(tmp_path, bucket, monkeypatch):
    write_files(tmp_path, pngs("x.png"))
    monkeypatch.chdir(tmp_path)
    source, why = open_source("x.png", SourceConfig(), Workspace(tmp_path / "w"))
    assert why == "a single image"
    assert source.name == f"{tmp_path}/x.png"
    assert everything(source) == {f"{tmp_path}/x.png": png()}
    url = bucket.write(pngs("y.png"))
    assert everything(opened(f"{url}/y.png")) == {f"{url}/y.png": png()}


def test_names_tell_lists_apart(tmp_path):
    write_files(tmp_path, pngs("a.png", "b.png") | {"one.txt": "a.png\n", "two.txt": "a.png\n"})
    names = [opened([f"{tmp_path}/{name}" for name in listed]).name for listed in ("ab", "ba", "aa", "a")]
    names += [opened(tmp_path / "one.txt").name, opened(tmp_path / "two.txt").name]
    names += [opened(tmp_path / "one.txt", root=str(tmp_path / "r")).name]
    assert len(set(names)) == len(names)
    assert opened([f"{tmp_path}/a", f"{tmp_path}/b"]).name == names[0]


def test_twice_listed_is_listed_twice_with_one_id(tmp_path):
    write_files(tmp_path, pngs("a.png"))
    items = list(opened([tmp_path / "a.png"] * 2).items())
    assert items[0] == items[1]


def test_copy_carries_no_list_and_reads_where_it_stands(tmp_path, monkeypatch):
    write_files(tmp_path, pngs("a.png"))
    monkeypatch.chdir(tmp_path)
    source = opened(["a.png", *(f"{number:0100}.png" for number in range(10_000))])
    item = next(source.items())
    packed = pickle.dumps(source)
    assert len(packed) < 2000
    monkeypatch.chdir("/")
    copy = pickle.loads(packed)
    assert copy.name == source.name
    assert copy.read(item) == png()


def test_copy_is_not_visible_where_the_files_are_not(tmp_path):
    place = write_files(tmp_path / "here", pngs("a.png"))
    write_files(tmp_path, {"list.txt": "here/a.png\n"})
    copies = [pickle.dumps(opened([place / "a.png"])), pickle.dumps(opened(tmp_path / "list.txt"))]
    assert all(pickle.loads(copy).is_visible() for copy in copies)
    place.rename(tmp_path / "there")
    assert not any(pickle.loads(copy).is_visible() for copy in copies)
    assert pickle.loads(pickle.dumps(opened(["s3://bucket/x.jpg", "http://host/x.jpg"]))).is_visible()


def test_copy_reads_in_another_process_and_directory(tmp_path, monkeypatch):
    write_files(tmp_path, pngs("a.png") | {"list.txt": "a.png\n"})
    monkeypatch.chdir(tmp_path)
    sources = [opened(["a.png"]), opened("list.txt"), opened("."), opened("*.png"), opened("a.png")]
    write_files(tmp_path, {"sent": pickle.dumps([(source, *source.items()) for source in sources])})
    code = (
        "import pickle, sys; from sightline.detection.item import Item;"
        "print([s.read(i) == open(sys.argv[1] + '/a.png', 'rb').read() and s.is_visible()"
        " for s, i in pickle.load(open(sys.argv[1] + '/sent', 'rb'))])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    answer = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == str([True] * len(sources))


def test_list_file_streams(tmp_path):
    write_files(tmp_path, {"list.txt": "".join(f"/nowhere/image-{number:09}.jpg\n" for number in range(20_000))})
    source = opened(tmp_path / "list.txt")
    next(source.items())
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_mistakes_are_sentences(tmp_path):
    write_files(tmp_path, {"long.txt": "x" * 70_000, "list.txt": "a.png\n"})
    with pytest.raises(ConfigError, match="list of images is empty"):
        opened([])
    with pytest.raises(ConfigError, match="the source is empty"):
        opened("")
    with pytest.raises(FormatError, match="line 1 of .* has no end"):
        list(opened(tmp_path / "long.txt").items())
    with pytest.raises(NotFoundError, match=r"missing\.txt' does not exist"):
        opened(tmp_path / "missing.txt")
    with pytest.raises(ConfigError, match=r"source\.where = 'x' means nothing for a source of kind list"):
        opened(tmp_path / "list.txt", where="x")


def test_comments_alone_are_no_images(tmp_path):
    write_files(tmp_path, {"list.txt": "# nothing\n\n   \n"})
    assert contents(opened(tmp_path / "list.txt")) == {}
