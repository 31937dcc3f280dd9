"""Plans or rows that were removed or restored: an error that says so, never images that are counted as done."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes import jpeg

import sightline
from sightline.detection.detect import DetectResult
from sightline.errors import DamagedError
from sightline.models.bundle import Bundle

COUNT = 8


def photos(place: Path, first: int) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for number in range(first, first + COUNT):
        (place / f"{number:02}.jpg").write_bytes(jpeg(seed=number))


def lose_the_plan(tmp_path: Path, to: str) -> None:
    if "://" not in to:
        shutil.rmtree(tmp_path / "ws" / "detections" / to / "plan")
        return
    with sqlite3.connect(tmp_path / "job.sqlite") as database:
        database.execute("delete from sightline_generations")


@pytest.mark.parametrize("to", ["job", "sqlite:///{tmp}/job.sqlite"])
def test_a_plan_that_is_gone_with_other_images_in_the_source(tmp_path: Path, bundle: Bundle, to: str) -> None:
    """The new plan would begin with the name of a chunk that is committed, with as many images."""

    def detect() -> DetectResult:
        settings: dict[str, Any] = {"engine": "torch", "threads": 1, "threshold": 0.1, "workspace": tmp_path / "ws"}
        return sightline.detect(str(bundle.path), tmp_path / "photos", to.format(tmp=tmp_path), **settings)

    photos(tmp_path / "photos", 0)
    assert detect().counts.images == COUNT
    lose_the_plan(tmp_path, to)
    photos(tmp_path / "photos", 50)
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"'000000-00000' in .* the plan or the rows were removed"):
            detect()
