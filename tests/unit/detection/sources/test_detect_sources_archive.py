"""Images in archives: read from where they lie, and never more than was declared."""

import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
from source_builders import contents, opened, png, pngs, reason, write_files

from sightline.data.disk import MAX_FILE_BYTES
from sightline.detection.item import id_of
from sightline.errors import FormatError, ImageError

MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}
SUFFIXES = [".zip", *MODES]


def zipped(files, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(files, mode="w", **options):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, **options) as archive:
        for name, data in files.items():
            member = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            content = b"" if member is data else data
            member.name, member.size = name, len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def packed(suffix, files):
    return zipped(files) if suffix == ".zip" else tarred(files, MODES[suffix])


def special(kind, target=""):
    member = tarfile.TarInfo()
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_image_of_an_archive(tmp_path, bucket, suffix, place):
    files = pngs("b.png", "a/x.JPG", "../up.png", "/etc/abs.png", "snow☃.png", "new\nline.png", "a" * 180 + "/long.png")
    others = {"notes.txt": b"no", "__MACOSX/._b.png": b"no", ".hidden/x.png": b"no"}
    data = packed(suffix, files | others)
    root = (
        bucket.write({f"in{suffix}": data}) if place == "bucket" else str(write_files(tmp_path, {f"in{suffix}": data}))
    )
    source = opened(f"{root}/in{suffix}")
    assert source.name == f"{root}/in{suffix}"
    found = contents(source)
    assert list(found.items()) == [(f"{root}/in{suffix}!/{name}", data) for name, data in files.items()]
    for item in source.items():
        assert item.image_id == id_of(item.uri)
    assert [file.name for file in tmp_path.iterdir()] == ([f"in{suffix}"] if place == "disk" else [])


def test_versions_are_those_of_the_members(tmp_path):
    data, member = png(), tarfile.TarInfo("a.png")
    member.size, member.mtime = len(data), 1_700_000_000
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(member, io.BytesIO(data))
    write_files(tmp_path, {"a.zip": zipped({"a.png": data})})
    assert [item.version for item in opened(tmp_path / "a.tar").items()] == [f"{len(data)}-1700000000"]
    assert [item.version for item in opened(tmp_path / "a.zip").items()] == [f"{zlib.crc32(data):08x}-{len(data)}"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_zip_methods(tmp_path, method):
    files = pngs("a.png", "b.png") | {"empty.png": b""}
    write_files(tmp_path, {"a.zip": b"a program in front" * 9 + zipped(files, method)})
    assert list(contents(opened(tmp_path / "a.zip")).values()) == list(files.values())


def test_zip_with_a_method_of_others(tmp_path):
    write_files(tmp_path, {"a.zip": zipped(pngs("a.png"), zipfile.ZIP_LZMA)})
    assert [reason(error) for error in contents(opened(tmp_path / "a.zip")).values()] == [
        ("path", "compression not supported")
    ]


def changed_directory(data, field, value):
    """A ZIP whose directory says something else of its first member; offsets are those of the format."""
    start = data.index(b"PK\x01\x02")
    size = struct.calcsize(field[1])
    return data[: start + field[0]] + struct.pack(field[1], value) + data[start + field[0] + size :]


FLAGS, PACKED, SIZE, ATTRIBUTES, OFFSET = (8, "<H"), (20, "<I"), (24, "<I"), (38, "<I"), (42, "<I")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (FLAGS, 1, "encrypted archive member"),
        (ATTRIBUTES, 0o120777 << 16, "link in an archive"),
        (SIZE, 10, "damaged archive"),
        (SIZE, MAX_FILE_BYTES + 1, "file not readable"),
        (PACKED, 10, "damaged archive"),
        (PACKED, 0xFFFFFFF0, "file not readable"),
        (OFFSET, 7, "damaged archive"),
    ],
)
def test_lies_in_a_zip(tmp_path, field, value, expected):
    write_files(tmp_path, {"a.zip": changed_directory(zipped(pngs("a.png", "b.png")), field, value)})
    first, second = contents(opened(tmp_path / "a.zip")).values()
    assert reason(first) == ("read" if expected == "damaged archive" else "path", expected)
    assert second == png(1)


def test_bomb_is_not_unpacked(tmp_path):
    """A hundred megabytes that say they are a thousand bytes; memory stays small."""
    bomb = changed_directory(zipped({"a.png": bytes(100 << 20)}), SIZE, 1000)
    write_files(tmp_path, {"a.zip": bomb})
    source = opened(tmp_path / "a.zip")
    [item] = source.items()
    tracemalloc.start()
    with pytest.raises(ImageError, match="damaged archive"):
        source.read(item)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_links_and_devices_in_a_tar(tmp_path):
    files = {
        "good.png": png(),
        "link.png": special(tarfile.SYMTYPE, "/etc/passwd"),
        "hard.png": special(tarfile.LNKTYPE, "good.png"),
        "pipe.png": special(tarfile.FIFOTYPE),
        "device.png": special(tarfile.CHRTYPE),
        "folder.png": special(tarfile.DIRTYPE),
    }
    write_files(tmp_path, {"a.tar": tarred(files)})
    found = {uri.rpartition("/")[2]: data for uri, data in contents(opened(tmp_path / "a.tar")).items()}
    assert found.pop("good.png") == png()
    assert {name: reason(error)[1] for name, error in found.items()} == {
        "link.png": "link in an archive",
        "hard.png": "link in an archive",
        "pipe.png": "not a regular file",
        "device.png": "not a regular file",
    }


def test_names_in_a_tar_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    data = tarred({name: png()}, format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape")
    write_files(tmp_path, {"a.tar": data})
    assert contents(opened(tmp_path / "a.tar")) == {f"{tmp_path}/a.tar!/caf\\udce9.png": png()}


def test_compression_is_told_by_content(tmp_path):
    write_files(tmp_path, {"a.tar": tarred(pngs("a.png"), "w:gz"), "b.tar.gz": tarred(pngs("b.png"))})
    for name in ("a.tar", "b.tar.gz"):
        assert list(contents(opened(tmp_path / name)).values()) == [png(0)]


def broken_header(data):
    """A tar with two members; the second's header is no header."""
    start = data.index(b"b.png")
    return data[:start] + b"\xff" * 512 + data[start + 512 :]


def negative_size(data):
    """A member of minus 512 bytes would be met again for ever."""
    block = bytearray(data[:512])
    block[124:136] = b"\xff" * 10 + b"\xfe\x00"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data[512:]


TAR = tarred(pngs("a.png", "b.png"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("text.zip", b"not a zip"),
        ("empty.zip", b""),
        ("cut.zip", zipped(pngs("a.png"))[:-30]),
        ("text.tar", b"not a tar" * 100),
        ("cut.tar", TAR[:600]),
        ("broken.tar", broken_header(TAR)),
        ("negative.tar", negative_size(TAR)),
        ("cut.tar.gz", tarred(pngs("a.png", "b.png"), "w:gz")[:-40]),
        ("text.tar.xz", b"\xfd7zXZ\0 not xz"),
        ("deep.tar", tarred({"a.png": b""})[:0] + (tarfile.TarInfo("x").tobuf()[:156] + b"L").ljust(512, b"\0") * 9),
    ],
)
def test_file_that_is_no_archive(tmp_path, name, data):
    write_files(tmp_path, {name: data})
    with pytest.raises(FormatError, match=f"{name}' cannot be"):
        list(opened(tmp_path / name).items())


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_archive_that_was_replaced_gives_no_other_image(tmp_path, suffix):
    files = {"a12.png": bytes(1000), "a21.png": b"\1" * 1000}
    write_files(tmp_path, {f"a{suffix}": packed(suffix, files)})
    source = opened(tmp_path / f"a{suffix}")
    items = list(source.items())
    write_files(tmp_path, {f"a{suffix}": packed(suffix, dict(reversed(files.items())))})
    copy = pickle.loads(pickle.dumps(source))
    for item in items:
        with pytest.raises(ImageError, match="archive was changed"):
            copy.read(item)


def test_unpacked_tar_is_seen_by_other_processes_and_gone_with_its_own(tmp_path):
    write_files(tmp_path, {"a.tar.gz": tarred(pngs("a.png", "b.png"), "w:gz")})
    source = opened(tmp_path / "a.tar.gz")
    write_files(tmp_path, {"source": pickle.dumps((source, list(source.items())))})
    code = """
import pickle, sys
source, items = pickle.load(open(sys.argv[1], "rb"))
print(source.is_visible(), [len(source.read(item)) for item in items] if source.is_visible() else None)
"""
    command = [sys.executable, "-c", code, tmp_path / "source"]
    seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert seen.strip() == f"True {[len(png(0)), len(png(1))]}"
    del source
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False None"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tar.gz", "source"]


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_archive_of_another_machine_is_not_visible(tmp_path, suffix):
    write_files(tmp_path, {f"a{suffix}": packed(suffix, pngs("a.png"))})
    data = pickle.dumps(opened(tmp_path / f"a{suffix}"))
    (tmp_path / f"a{suffix}").unlink()
    assert not pickle.loads(data).is_visible()


def test_archive_where_nothing_may_be_written(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    write_files(tmp_path / "ro", {"a.tar.xz": tarred(pngs("a.png"), "w:xz")})
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "ro")
    assert list(contents(opened(tmp_path / "ro/a.tar.xz")).values()) == [png(0)]


def test_tar_with_many_members_streams(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(5000):
            archive.addfile(tarfile.TarInfo(f"image-{number:08}.png"))
    source = opened(tmp_path / "a.tar")
    tracemalloc.start()
    assert sum(1 for _ in source.items()) == 5000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
