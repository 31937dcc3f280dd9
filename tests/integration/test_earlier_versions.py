"""What an earlier commit stored is opened by this one, and its work goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from earlier.make_workspace import IMAGES, TARGETS, TRAIN

import sightline
from sightline.config import load_config
from sightline.errors import ConfigError
from sightline.training.run import RunResult

ROOT = Path(__file__).parents[2]
BEFORE_FORMATS = "000455b1633cb126f052774becddf4a91823963d"
"""The last commit whose plans, rows and checkpoints had no format version."""


def git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if found.returncode:
        pytest.skip(f"this checkout has no such history: {found.stderr.strip()}")
    return found.stdout.strip()


@pytest.fixture(params=["the preceding commit", BEFORE_FORMATS], scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the workspace that an earlier commit left."""
    changed = git("status", "--porcelain", "--", "src")
    commit = request.param if request.param == BEFORE_FORMATS else "HEAD" if changed else "HEAD~1"
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("place")
    git("archive", "--output", str(source / "src.tar"), commit, "src")
    subprocess.run(["tar", "-xf", "src.tar"], cwd=source, check=True)
    script = Path(__file__).parent / "earlier" / "make_workspace.py"
    subprocess.run(
        [sys.executable, str(script), str(place), str(source)],
        env={**os.environ, "PYTHONPATH": str(source / "src")},
        check=True,
        timeout=600,
    )
    return place


def test_the_dataset_opens(place: Path) -> None:
    dataset = sightline.open_dataset("shapes", workspace=place / "workspace")
    assert len(dataset) == 12
    assert all(len(bytes(dataset[row].image)) for row in range(12))


def test_a_finished_run_is_used(place: Path) -> None:
    scored = sightline.evaluate("done", "shapes", workspace=place / "workspace")
    assert scored is not None
    assert sightline.load_model("done", workspace=place / "workspace").classes


def test_a_stopped_run_goes_on(place: Path) -> None:
    """Once precision was settled by the first machine of a run: then it has to be given, and the refusal says so."""

    def go_on(**settings: str) -> RunResult:
        config = load_config(flags={"train": {**TRAIN, **settings}, "tracking": {"enabled": False}})
        return sightline.train("shapes", name="stopped", workspace=place / "workspace", config=config)

    before = json.loads((place / "workspace" / "runs" / "stopped" / "config.json").read_text())["train"]["precision"]
    if before != "auto":
        with pytest.raises(ConfigError, match=f"train.precision is {before} there and auto here. Give the settings"):
            go_on()
    result = go_on(precision=before)
    assert result.resumed_at_step > 0
    assert result.epochs == TRAIN["epochs"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_stopped_job_goes_on(place: Path, target: str) -> None:
    to = target.format(place=place) if "://" in target else str(place / target) if "." in target else target
    settings = {"workspace": place / "workspace", "engine": "torch", "threads": 1, "threshold": 0.01}
    result = sightline.detect("done", place / "photos", to, **settings)
    assert 0 < result.counts.images < IMAGES
    assert (result.summary.images, result.summary.rejected) == (IMAGES, 1)
    anew = sightline.detect("done", place / "photos", f"anew-{TARGETS.index(target)}", **settings)
    assert anew.counts.images == IMAGES
    assert anew.summary == result.summary
