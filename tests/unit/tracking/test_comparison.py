"""Runs side by side."""

from typing import Any

import pytest

from sightline.errors import NotFoundError
from sightline.tracking.comparison import compare
from sightline.tracking.listing import TrackedRun, choose_runs


def run(name: str, run_id: str = "0" * 32, **values: Any) -> TrackedRun:
    return TrackedRun(
        name, run_id, "finished", "nano", "boards", (2, 2), 0.5, 10.0, 1, "2026-01-01T00:00:00+00:00", **values
    )


def test_settings_and_machines_show_what_differs_and_results_everything() -> None:
    one = run("a", settings={"lr": "0.1", "seed": "0"}, metrics={"val/map": 0.5, "train/loss": 1.0})
    two = run("b", settings={"lr": "0.2", "seed": "0", "new": "1"}, metrics={"val/map": 0.5}, machine={"cores": "4"})
    found = compare([one, two])
    assert found.settings == {"lr": ("0.1", "0.2"), "new": (None, "1")}
    assert found.results == {"val/map": (0.5, 0.5)}
    assert found.machine == {"cores": (None, "4")}


def test_runs_are_chosen_by_name_then_by_id() -> None:
    runs = [run("a", "aaaa1"), run("b", "bbbb1"), run("a", "aaaa2")]
    assert [found.run_id for found in choose_runs(runs, ["a", "aaaa2", "b"])] == ["aaaa1", "aaaa2", "bbbb1"]
    with pytest.raises(NotFoundError, match=r"no run 'c'; the newest are: a, b\."):
        choose_runs(runs, ["a", "c"])
