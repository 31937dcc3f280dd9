"""Files of a dataset on a disk that fails: for a while, for good, or as a whole."""

import errno
from typing import Any

import pyarrow as pa
import pytest

from sightline.data.stored_file import StoredFile
from sightline.errors import DamagedError, StorageError

CONTENT = bytes(range(256)) * 4
pytestmark = pytest.mark.usefixtures("impatient")


class FailingFolder:
    """Holds `file` and `manifest`; the next calls raise the errors in `failures`."""

    location = "/data/boards"

    def __init__(self, *failures: OSError, names: tuple[str, ...] = ("file", "manifest")) -> None:
        self.failures, self.names, self.opened = list(failures), names, 0

    def open_file(self, name: str) -> Any:
        if name not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        self.opened += 1
        return self

    def read_at(self, length: int, offset: int) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        return CONTENT[offset : offset + length]

    def size(self) -> int:
        return len(CONTENT)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
def test_a_failure_that_passes(number: int) -> None:
    folder = FailingFolder(OSError(number, "for a while"), OSError(number, "for a while"))
    assert StoredFile(folder, "file", beside="manifest").read_at(4, 8) == CONTENT[8:12]
    assert folder.opened == 3, "a handle that failed is not used again"


def test_a_failure_that_persists() -> None:
    folder = FailingFolder(*(OSError(errno.EIO, "Input/output error") for _ in range(1000)))
    with pytest.raises(
        StorageError, match=r"boards/file could not be read for 20 s: .*Input/output error.*same command"
    ):
        StoredFile(folder, "file", beside="manifest").read_at(4, 0)


def test_a_missing_file_is_damage_at_once() -> None:
    folder = FailingFolder(names=("manifest",))
    with pytest.raises(DamagedError, match="boards/file is not the file that was written: it is missing"):
        StoredFile(folder, "file", beside="manifest").read_at(4, 0)
    assert folder.opened == 2, "the manifest was there, so nothing was tried again"


def test_a_folder_that_is_gone_may_come_back() -> None:
    """An empty mount point has neither the file nor the manifest."""
    folder = FailingFolder(names=())
    file = StoredFile(folder, "file", beside="manifest")

    def come_back(error: BaseException) -> bool:
        folder.names = ("file", "manifest")
        return True

    file._may_pass = come_back  # type: ignore[method-assign]
    assert file.read_at(1, 0) == b"\x00"


def test_a_folder_that_stays_away_is_no_damage() -> None:
    with pytest.raises(StorageError, match=r"could not be read for 20 s"):
        StoredFile(FailingFolder(names=()), "file", beside="manifest").read_at(1, 0)


def test_arrow_reads_it_as_a_file() -> None:
    file = pa.PythonFile(StoredFile(FailingFolder(), "file", beside="manifest"), mode="r")
    assert file.size() == 1024
    assert file.read_at(3, 256) == CONTENT[:3]
    file.seek(1000)
    assert file.read() == CONTENT[1000:]
