"""Run by an earlier version of Sightline, which is first on the path: leaves a workspace in the middle of its work.

A dataset, a finished run and one that was stopped, and a detection job in each kind of target that was stopped, too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

import sightline
from sightline.config import load_config

IMAGES = 60
TARGETS = ("job", "job.duckdb", "sqlite:///{place}/job.sqlite")
TRAIN = {"model": "nano", "size": 64, "batch": 4, "threads": 1, "epochs": 3}


@contextmanager
def until_stopped() -> Iterator[None]:
    """Let the exception pass by which a run says that it was stopped; it has not always been where it is now."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "Stopped":
            raise


def main(place: Path, expected: str) -> None:
    """Make everything below a directory."""
    assert Path(sightline.__file__).is_relative_to(expected), sightline.__file__
    workspace = place / "workspace"
    sightline.synth("shapes", to="shapes", images=12, size=64, seed=0, workspace=workspace)
    config = load_config(flags={"train": TRAIN, "tracking": {"enabled": False}})
    sightline.train("shapes", name="done", workspace=workspace, config=config)
    seen: list[int] = []
    with until_stopped():
        sightline.train(
            "shapes",
            name="stopped",
            workspace=workspace,
            config=config,
            on_step=lambda progress, *_: seen.append(progress.step),
            should_stop=lambda: len(seen) >= 4,
        )
        raise AssertionError("training was not stopped")
    photos = place / "photos"
    photos.mkdir()
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 20, 3), np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(photos / f"{number:02}.jpg", quality=95)
    (photos / "05.jpg").write_bytes(b"no image")
    for target in TARGETS:
        where = target.format(place=place) if "://" in target else target
        begin_job(workspace, photos, str(place / where) if where.endswith(".duckdb") else where)


def begin_job(workspace: Path, photos: Path, to: str) -> None:
    """Detect, and stop after some chunks."""
    told: list[int] = []
    settings = {"workspace": workspace, "engine": "torch", "threads": 1, "threshold": 0.01}
    with until_stopped():
        sightline.detect(
            "done",
            photos,
            to,
            on_progress=lambda progress: told.append(progress.new),
            should_stop=lambda: bool(told) and told[-1] >= 16,
            **settings,
        )
        raise AssertionError(f"detection into {to} was not stopped")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
