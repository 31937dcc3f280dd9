"""Threads of workers, by cores and by what other processes leave of them."""

import subprocess
import sys

import pytest

from sightline.cluster.local_node import busy_cores
from sightline.config import load_config
from sightline.training import placement
from sightline.training.messages import RunProgress
from sightline.training.placement import settle_threads, share_threads, threads_of


@pytest.mark.parametrize(
    ("cores", "workers", "machine_cores", "busy", "threads"),
    [
        (2, 1, 2, 0.0, 2),
        (2, 1, 2, 0.2, 2),
        (2, 1, 2, 0.3, 1),
        (2, 1, 2, 1.0, 1),
        (2, 1, 2, 2.0, 1),
        (2, 2, 2, 0.0, 1),
        (2, 2, 2, 2.0, 1),
        (8, 1, 8, 0.0, 8),
        (8, 1, 8, 0.5, 7),
        (8, 2, 8, 0.5, 3),
        (8, 2, 8, 6.0, 1),
        (8, 1, 8, 7.9, 1),
        (8, 1, 8, 99.0, 1),
        # A container with 4 of 64 cores: the others are busy with other containers.
        (4, 1, 64, 40.0, 4),
        (4, 1, 64, 62.0, 2),
    ],
)
def test_busy_cores_are_left_out(cores: int, workers: int, machine_cores: int, busy: float, threads: int) -> None:
    assert share_threads(cores, workers, machine_cores=machine_cores, busy=busy) == threads


def test_a_number_that_was_given_is_kept() -> None:
    notes: list[str] = []
    config = load_config(flags={"train": {"threads": 7}})
    assert settle_threads(config, RunProgress(), on_note=notes.append) == config
    assert threads_of(config, 3) == 7
    assert notes == []


def test_what_was_settled_is_what_workers_use() -> None:
    notes: list[str] = []
    settled = settle_threads(load_config(), RunProgress(), on_note=notes.append)
    assert settled.train.threads >= 1
    assert threads_of(settled, 1) == settled.train.threads
    assert all("--set train.threads=" in note for note in notes)


@pytest.mark.parametrize(("workers", "kept"), [(1, True), (2, False)])
def test_a_run_that_goes_on_keeps_its_threads(workers: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle machine it would take all four cores; its sums would be others to the last bit."""
    monkeypatch.setattr(placement, "num_cores", lambda: 4)
    monkeypatch.setattr(placement, "busy_cores", lambda: 0.0)
    config = load_config(flags={"workers": {"count": workers}})
    settled = settle_threads(config, RunProgress(workers=1, threads=3), on_note=lambda note: None)
    assert (settled.train.threads == 3) is kept


def test_a_busy_process_is_seen_and_this_one_is_not() -> None:
    """On a machine whose cores are all busy already, one more process changes nothing."""
    loop = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(loop, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert busy_cores() > 0.25
        finally:
            process.kill()
