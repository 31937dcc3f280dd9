"""Where detection runs: the cluster that this process belongs to comes before anything local."""

import pytest

from sightline.config import Config
from sightline.detect_api import _in_cluster


def test_the_cluster_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside `ray job submit`."""
    notes: list[str] = []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert _in_cluster(Config(), notes.append).detect.address == "10.0.0.1:6379"
    assert notes == ["detecting on the Ray cluster of this process (10.0.0.1:6379)"]


def test_an_address_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    given = Config.model_validate({"detect": {"address": "local"}})
    assert _in_cluster(given, lambda note: None).detect.address == "local"


def test_without_a_cluster_workers_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert _in_cluster(Config(), lambda note: None).detect.address is None
