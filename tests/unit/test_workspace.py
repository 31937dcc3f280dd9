"""A workspace is its owner's alone when we create it, and is left as it is when we do not."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import sightline
from sightline.config import Config
from sightline.errors import StorageError
from sightline.tracking.store import Store
from sightline.workspace import Workspace


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_workspace_and_its_database_are_private(tmp_path: Path) -> None:
    sightline.synth("shapes", "shapes", images=2, workspace=tmp_path / "work")
    assert mode(tmp_path / "work") == 0o700
    store = Store.find(Config().tracking, tmp_path / "tracked")
    store.make_experiment(store.open())
    assert (mode(tmp_path / "tracked"), mode(tmp_path / "tracked" / "mlflow.db")) == (0o700, 0o600)


def test_what_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir(mode=0o755)
    (tmp_path / "work" / "mlflow.db").touch(mode=0o644)
    Workspace(tmp_path / "work").make()
    Store.find(Config().tracking, tmp_path / "work").open()
    assert (mode(tmp_path / "work"), mode(tmp_path / "work" / "mlflow.db")) == (0o755, 0o644)


def test_a_dataset_elsewhere_makes_no_workspace(tmp_path: Path) -> None:
    sightline.synth("shapes", str(tmp_path / "data"), images=2, workspace=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_workspace_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot make the workspace .*--workspace"):
        Workspace(tmp_path / "file" / "work").make()
