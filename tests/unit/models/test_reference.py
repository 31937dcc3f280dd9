"""What a name, a path or a URL of a model means, and that nothing is opened that could run code."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sightline
from sightline.config import TrackingConfig
from sightline.data.manifest import write_manifest
from sightline.errors import ConfigError, DamagedError, FormatError, NotFoundError
from sightline.models.bundle import Bundle, open_bundle
from sightline.models.reference import Finder
from sightline.workspace import Workspace


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture
def finder(tmp_path: Path) -> Finder:
    return Finder(Workspace(tmp_path / "workspace"), TrackingConfig())


def test_paths_and_runs(bundle: Bundle, finder: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finder.workspace.runs / "first"
    shutil.copytree(bundle.path, run / "model")
    monkeypatch.chdir(bundle.path.parent)
    for reference in ("first", str(run), str(run / "model"), "./bundle", f"file://{bundle.path}", str(bundle.path)):
        assert finder.find(reference).hash == bundle.hash, reference
    with pytest.raises(NotFoundError, match=r"no model 'bundle'.*a path must contain a '/'"):
        finder.find("bundle")


@pytest.mark.parametrize("reference", ["boards/3", "boards@champion"])
def test_versions_are_the_registrys_even_if_there_is_such_a_path(
    bundle: Bundle, finder: Finder, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundle.path.parent)
    shutil.copytree(bundle.path, bundle.path.parent / reference)
    with pytest.raises(NotFoundError, match=r"no registered model 'boards'.*'\./' before it"):
        finder.find(reference)
    if "/" in reference:
        assert finder.find(f"./{reference}").hash == bundle.hash
    assert not finder.workspace.root.exists()


@pytest.mark.parametrize("name", ["", "..", "a b", "-x", "x" * 101, "a'; drop table runs; --"])
def test_names_that_are_none(finder: Finder, name: str) -> None:
    with pytest.raises((ConfigError, NotFoundError)):
        finder.find(name)


@pytest.mark.parametrize("name", ["model.pt", "MODEL.PTH", "model.pkl", "model.ckpt", "model.pickle", "a.bin"])
def test_pickles_are_refused_by_type_and_never_opened(finder: Finder, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    for reference in (str(tmp_path / name), f"s3://bucket/{name}?region=x", f"file://{tmp_path}/{name}", name):
        with pytest.raises(FormatError, match=rf"sightline import {name} --model FAMILY"):
            finder.find(reference)
    assert not (tmp_path / "ran").exists()


def test_a_file_of_weights_is_no_bundle(finder: Finder, bundle: Bundle) -> None:
    with pytest.raises(FormatError, match=r"sightline import weights\.safetensors"):
        finder.find(str(bundle.path / "weights.safetensors"))


@pytest.mark.parametrize("file", ["weights.safetensors", "model.json", "README.md", "extra.pkl"])
@pytest.mark.parametrize("manifest", [True, False])
def test_a_payload_in_a_bundle_does_not_run(bundle: Bundle, file: str, manifest: bool, tmp_path: Path) -> None:
    """Not even if whoever put it there wrote a manifest for it."""
    torch.save(Payload(tmp_path / "ran"), bundle.path / file)
    if manifest:
        (bundle.path / "manifest.json").unlink()
        write_manifest(bundle.path)
    if manifest and file in ("README.md", "extra.pkl"):
        sightline.load_model(bundle.path, workspace=tmp_path)  # It is listed, and nobody opens it.
    else:
        with pytest.raises(DamagedError):
            sightline.load_model(bundle.path, workspace=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_copy_in_the_cache_is_brought_anew(bundle: Bundle, finder: Finder, tmp_path: Path) -> None:
    from sightline.data.storage import Folder
    from sightline.models.cache import FolderSource, bring_bundle

    source, cache = FolderSource(Folder.open(bundle.path)), tmp_path / "cache"
    for _ in range(2):
        found = bring_bundle(source, cache, expected=bundle.hash)
        assert (found.hash, found.path) == (bundle.hash, cache / bundle.hash)
        (found.path / "weights.safetensors").write_bytes(b"torn")
    assert [place.name for place in cache.iterdir()] == [bundle.hash]
    with pytest.raises(DamagedError, match="somebody changed it"):
        bring_bundle(source, cache, expected="0" * 64)
    (bundle.path / "model.json").write_bytes(b"{}")
    shutil.rmtree(cache)
    with pytest.raises(DamagedError):
        bring_bundle(source, cache)
    assert list(cache.iterdir()) == []


def test_a_moved_bundle_works_in_another_workspace(bundle: Bundle, tmp_path: Path) -> None:
    """As on another machine: nothing of where it was made is there."""
    away = tmp_path / "away"
    away.mkdir()
    shutil.move(bundle.path, away / "my model")
    code = (
        "import sys, numpy, sightline\n"
        "model = sightline.load_model(sys.argv[1])\n"
        "print(model.bundle.hash, len(model.predict(numpy.zeros((40, 50, 3), 'uint8'))))"
    )
    environment = {**os.environ, "SIGHTLINE_HOME": str(away / "other"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "./my model"], cwd=away, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == [bundle.hash, "1"], done.stderr
    assert {place.name for place in away.iterdir()} <= {"my model", "other"}, "only what was compiled is left"
    assert open_bundle(away / "my model").hash == bundle.hash
