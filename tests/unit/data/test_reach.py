"""Whether a source is out of reach: on a disk, and in a bucket."""

from pathlib import Path

import pytest
from pyarrow import fs as pafs

from sightline.data.reach import check_reach, load_patiently
from sightline.data.storage import Folder
from sightline.errors import ImageError, SourceError


@pytest.mark.parametrize("name", ["", "a.png", "deep/a.png"])
def test_a_folder_that_holds_something_is_in_reach(tmp_path: Path, name: str) -> None:
    folder = Folder.open(tmp_path / "source")
    with pytest.raises(SourceError, match="is missing or empty on this machine: is it mounted"):
        check_reach((folder,), name)
    (tmp_path / "source").mkdir()
    with pytest.raises(SourceError, match="is missing or empty"):
        check_reach((folder,), name)
    (tmp_path / "source/b.png").write_bytes(b"")
    check_reach((folder,), name)


def bucket(path: str) -> Folder:
    return Folder(f"s3:/{path}", pafs.LocalFileSystem(), path, is_local=False)


@pytest.mark.usefixtures("impatient")
def test_an_object_is_missing_only_from_a_bucket_that_is_there(tmp_path: Path) -> None:
    here, nowhere = bucket(str(tmp_path)), bucket("/no-such-bucket/images")
    with pytest.raises(ImageError, match="file not found"):
        load_patiently(lambda: here.read("a.png"), (here,), "a.png")
    with pytest.raises(SourceError, match=r"no-such-bucket/images' cannot be reached: there is no such bucket"):
        load_patiently(lambda: nowhere.read("a.png"), (nowhere,), "a.png")
