"""What a manifest lists is whole or damaged; a disk that fails says neither."""

import builtins
import errno
from pathlib import Path

import pytest

from failing_disk import ALWAYS, FailingDisk
from sightline.data.manifest import MANIFEST, verify_manifest, write_manifest
from sightline.errors import DamagedError, StorageError

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_bytes(bytes(range(256)))
    write_manifest(tmp_path)
    return tmp_path


@pytest.fixture
def disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    """Fails when `weights` are opened."""
    return FailingDisk(monkeypatch, builtins, "open", str(directory / "weights"))


def test_a_disk_that_fails_for_a_while(directory: Path, disk: FailingDisk) -> None:
    expected = verify_manifest(directory)
    disk.failures = 2
    assert verify_manifest(directory) == expected
    assert disk.failed == 2


def test_a_disk_that_fails_for_good_is_no_damage(directory: Path, disk: FailingDisk) -> None:
    disk.failures = ALWAYS
    with pytest.raises(StorageError, match=rf"cannot read '{directory}': .*Input/output error.*same command"):
        verify_manifest(directory)


def test_a_forbidden_file_is_neither_damaged_nor_asked_for_again(directory: Path, disk: FailingDisk) -> None:
    disk.failures, disk.number = ALWAYS, errno.EACCES
    with pytest.raises(StorageError, match="Permission denied"):
        verify_manifest(directory)
    assert disk.failed == 1


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_a_missing_file_is_damage_at_once(directory: Path, disk: FailingDisk, number: int) -> None:
    disk.failures, disk.number = ALWAYS, number
    with pytest.raises(DamagedError, match="is not complete"):
        verify_manifest(directory)
    assert disk.failed == 1


@pytest.mark.parametrize("file", ["weights", MANIFEST])
def test_a_file_that_is_gone_or_changed_is_damage(directory: Path, file: str) -> None:
    content = (directory / file).read_bytes()
    (directory / file).write_bytes(content[:-1] + b"!")
    with pytest.raises(DamagedError):
        verify_manifest(directory)
    (directory / file).unlink()
    with pytest.raises(DamagedError, match="is not complete"):
        verify_manifest(directory)
