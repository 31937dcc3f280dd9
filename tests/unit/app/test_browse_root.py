"""Visitors open folders below the directory that the app was told to browse, and nothing else."""

from pathlib import Path

import pytest

from sightline.app.browse_root import BROWSE_VARIABLE, browse_root, folder_below, open_below
from sightline.app.server import _pass_on
from sightline.errors import ConfigError, ImageError, NotFoundError, SightlineError
from sightline.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory to browse with links and files that lead out of it, and private files beside it."""
    for name in ("root/photos/sub", "root/it's [a] test?", "private", "root-too"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "private/secret.jpg").write_bytes(b"secret")
    (tmp_path / "root/photos/a.jpg").write_bytes(b"a")
    (tmp_path / "root/photos/sub/b.jpg").write_bytes(b"b")
    (tmp_path / "root/list.txt").write_text("/etc/passwd")
    (tmp_path / "root/out").symlink_to(tmp_path / "private")
    (tmp_path / "root/inside").symlink_to(tmp_path / "root/photos")
    (tmp_path / "root/photos/link.jpg").symlink_to(tmp_path / "private/secret.jpg")
    return tmp_path / "root"


BELOW = (".", "photos", "photos/sub", "photos/../photos", "inside", "it's [a] test?", "/ROOT/photos")
OUTSIDE = ("..", "../private", "/", "/etc", "out", "out/..", "photos/../../private", "/ROOT-too", "/ROOT/../private")
URLS = ("s3://bucket/x", "s3://bucket/x?endpoint_override=127.0.0.1:1", "webhdfs://host/x", "file:///etc", "a\0b")


@pytest.mark.parametrize("text", BELOW)
def test_folders_below_are_opened(root: Path, text: str) -> None:
    found = Path(folder_below(root, text.replace("/ROOT", str(root))))
    assert found.is_relative_to(root)
    assert found.is_dir()


@pytest.mark.parametrize("text", [*OUTSIDE, *URLS])
def test_everything_else_is_refused(root: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not (a folder )?below"):
        folder_below(root, text.replace("/ROOT", str(root)))


@pytest.mark.parametrize("text", ["list.txt", "photos/a.jpg", "missing", "photos/*", "archive.zip"])
def test_only_folders_are_opened(root: Path, text: str) -> None:
    with pytest.raises(NotFoundError, match="name a folder, not a file"):
        folder_below(root, text)


def test_a_link_to_an_image_outside_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROWSE_VARIABLE, str(root))
    source = open_below("photos")
    found: dict[str, bytes | str] = {}
    for item in source.items():
        try:
            found[Path(item.uri).name] = source.read(item)
        except ImageError as error:
            found[Path(item.uri).name] = error.reason
    assert found == {"a.jpg": b"a", "b.jpg": b"b", "link.jpg": "path leads out of the source"}


def test_nothing_is_opened_by_default(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROWSE_VARIABLE, "/")
    monkeypatch.setenv("SIGHTLINE_HOME", "")
    _pass_on(Workspace(tmp_path), None)
    assert browse_root() is None
    with pytest.raises(SightlineError, match="--browse ROOT"):
        open_below("photos")
    _pass_on(Workspace(tmp_path), root / "inside")
    assert browse_root() == root / "photos"
    with pytest.raises(NotFoundError, match=r"--browse .*list.txt.* is not a directory"):
        _pass_on(Workspace(tmp_path), root / "list.txt")
