"""Folders on a disk and in a bucket."""

import tracemalloc
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from sightline.data.disk import MAX_FILE_BYTES
from sightline.data.storage import Folder
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
