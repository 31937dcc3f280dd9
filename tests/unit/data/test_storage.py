"""Folders on a disk and in a bucket."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from sightline.data.disk import MAX_FILE_BYTES
from sightline.data.formats.coco import looks_like_coco
from sightline.data.storage import File, Folder
from sightline.errors import ImageError


@pytest.mark.parametrize("is_local", [True, False], ids=["disk", "bucket"])
def test_a_file_above_the_size_limit_is_refused_before_it_is_read(tmp_path: Path, is_local: bool) -> None:
    folder = Folder(str(tmp_path), pafs.LocalFileSystem(), str(tmp_path), is_local)
    with open(tmp_path / "huge.jpg", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # A sparse file, which takes no space.
    (tmp_path / "small.jpg").write_bytes(b"small")
    tracemalloc.start()
    try:
        with pytest.raises(
            ImageError, match=f"it has {MAX_FILE_BYTES + 1} bytes, more than {MAX_FILE_BYTES}"
        ) as caught:
            folder.read("huge.jpg")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "file not readable"
    assert peak_bytes < 1 << 20
    assert folder.read("small.jpg") == b"small"


class Forbidding:
    """A bucket whose objects may neither be asked for nor read."""

    def get_file_info(self, path: object) -> None:
        raise OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body.")

    open_input_file = get_file_info


def test_what_a_bucket_forbids_is_not_there_and_not_asked_for_again() -> None:
    """Without a retry, which would take a minute: S3 says so of what is not there, to those who may not list."""
    folder = Folder("s3://bucket", Forbidding(), "bucket", is_local=False)
    assert (folder.size("a.json"), folder.is_folder("a")) == (None, False)
    assert not looks_like_coco(folder, "a.json")


class FailingOnce:
    """A bucket, as a folder on the disk, whose next listing fails."""

    def __init__(self) -> None:
        self._disk = pafs.LocalFileSystem()
        self._fails = True

    def get_file_info(self, what: str | pafs.FileSelector) -> object:
        if isinstance(what, pafs.FileSelector) and self._fails:
            self._fails = False
            raise OSError("AWS Error SLOW_DOWN during ListObjectsV2 operation: Please reduce your request rate.")
        return self._disk.get_file_info(what)


@pytest.mark.parametrize(
    ("list_images", "listed"),
    [(Folder.names, [("a.jpg", False)]), (lambda folder: list(folder.walk()), [File("a.jpg", 1)])],
    ids=["names", "walk"],
)
def test_a_bucket_that_cannot_be_listed_for_a_moment_is_listed_again(
    tmp_path: Path, list_images: Callable[[Folder], object], listed: object
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"a")
    folder = Folder("s3://bucket", FailingOnce(), str(tmp_path), is_local=False)
    assert list_images(folder) == listed
