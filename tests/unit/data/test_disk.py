"""Files that survive a crash of the machine: every directory that gets a new name in it is synced."""

import os
from pathlib import Path

import pytest

from sightline.data.disk import make_directory
from sightline.data.target import DatasetTarget


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was synced so far."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_new_directories(tmp_path: Path, synced: list[Path]) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "d")
    assert synced[3:] == [tmp_path / "a"]
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")


def test_a_new_dataset(tmp_path: Path, synced: list[Path]) -> None:
    with DatasetTarget(str(tmp_path / "datasets" / "x")).open() as directory:
        (directory / "file").touch()
    assert synced == [tmp_path, directory, tmp_path / "datasets"]
