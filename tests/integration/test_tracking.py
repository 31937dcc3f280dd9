"""Runs in a real MLflow: SQLite in the workspace, and a server on loopback."""

import fcntl
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sightline import api
from sightline.config import Config, load_config
from sightline.errors import Stopped, TrackingError
from sightline.tracking import listing
from sightline.tracking.library import open_client

PASSWORD = "correct-horse-battery"
TOKEN = "dapi0123456789abcdef0123456789abcdef"
SMALL = {"size": 64, "epochs": 2, "batch": 4, "threads": 1}


class Gate:
    """A way to the server that can be shut and opened again."""

    def __init__(self, target: int) -> None:
        self._target, self._shut = target, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def shut(self) -> None:
        self._shut.set()

    def open(self) -> None:
        self._shut.clear()

    def close(self) -> None:
        self._shut.set()
        self._listener.close()

    def _serve(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        if self._shut.is_set():
            client.close()
            return
        with client, socket.create_connection(("127.0.0.1", self._target)) as inner:
            pair = {client: inner, inner: client}
            while not self._shut.is_set():
                for readable in select.select(list(pair), [], [], 0.05)[0]:
                    data = readable.recv(1 << 16)
                    if not data:
                        return
                    pair[readable].sendall(data)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("my work")
    api.synth("shapes", "shapes", images=24, seed=1, workspace=place)
    return place


def settings(uri: str | None = None, **train: Any) -> Config:
    return load_config(flags={"train": {**SMALL, **train}, "tracking": {"uri": uri}})


def files_with(text: str, place: Path) -> list[str]:
    return [str(file) for file in place.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


def command(workspace: Path, *arguments: str) -> list[str]:
    small = [f"--set=train.{name}={value}" for name, value in SMALL.items()]
    return [sys.executable, "-m", "sightline", "train", "shapes", "-w", str(workspace), *small, *arguments]


def test_a_server_has_everything_and_no_credentials_anywhere(server: tuple[int, Path], workspace: Path) -> None:
    port, stored = server
    uri = f"http://ann:{PASSWORD}@127.0.0.1:{port}"
    secret = {**os.environ, "DATABRICKS_TOKEN": TOKEN, "MLFLOW_TRACKING_URI": uri}
    done = subprocess.run(
        command(workspace, "--json", "--set=ingest.query=select 'http://x:" + PASSWORD + "@host'", "--seed", "7"),
        capture_output=True,
        text=True,
        env=secret,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tracked_in"] == f"http://***@127.0.0.1:{port}"
    assert "mlflow" not in done.stderr.lower()
    assert "warning" not in done.stderr.lower()

    (found,) = api.list_runs(config=settings(uri))
    assert (found.name, found.status, found.epochs) == (result["name"], "finished", (2, 2))
    assert found.score == result["best_score"]
    assert found.settings["train.seed"] == "7"
    assert len(found.settings["dataset_hash"]) == 64
    assert {"time/forward_backward_s", "time/all_reduce_s", "run/peak_memory_mb", "val/map50"} <= found.metrics.keys()
    assert found.machine["machine.threads"] == "1"
    client = open_client(uri)
    assert {file.path for file in client.list_artifacts(found.run_id)} == {
        "config.json",
        "machine.json",
        "scores.json",
        "learning-curve.png",
        "predictions",
    }
    history = client.get_metric_history(found.run_id, "train/loss")
    assert [metric.step for metric in history] == list(range(1, result["steps"] + 1))

    for text in (PASSWORD, TOKEN):
        assert text not in done.stdout + done.stderr
        assert files_with(text, stored) == []
        assert files_with(text, workspace) == []


def test_a_server_that_goes_away_never_stops_a_run(
    server: tuple[int, Path], workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(server[0])
    uri = f"http://ann:{PASSWORD}@127.0.0.1:{gate.port}"

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "sightline.tracking"]

    def on_scores(epoch: int, scores: dict[str, float]) -> None:
        if epoch == 1:
            gate.shut()
            return
        deadline = time.monotonic() + 60
        while not told() and time.monotonic() < deadline:
            time.sleep(0.05)
        gate.open()

    with caplog.at_level(logging.WARNING):
        result = api.train("shapes", workspace=workspace, config=settings(uri, seed=8), on_scores=on_scores)
    gate.close()
    assert result.best_score >= 0
    (found,) = [
        run
        for run in api.list_runs(config=settings(f"http://127.0.0.1:{server[0]}"))
        if run.settings["train.seed"] == "8"
    ]
    assert found.status == "finished"
    history = open_client(f"http://127.0.0.1:{server[0]}").get_metric_history(found.run_id, "train/loss")
    assert {metric.step for metric in history} == set(range(1, result.steps + 1))
    assert len(told()) == 1
    assert "Training goes on" in told()[0]
    assert PASSWORD not in caplog.text


def test_a_server_that_is_not_there_is_an_error_before_anything_happens(workspace: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = sorted((workspace / "runs").glob("*"))
    started = time.monotonic()
    with pytest.raises(TrackingError, match="--no-track") as caught:
        api.train("shapes", workspace=workspace, config=settings(f"http://ann:{PASSWORD}@127.0.0.1:{port}", seed=9))
    assert time.monotonic() - started < 30
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert sorted((workspace / "runs").glob("*")) == before


def test_a_run_goes_on_in_the_same_run_of_mlflow(workspace: Path) -> None:
    calls = iter(range(100))
    config = settings(lr=0.001)
    with pytest.raises(Stopped):
        api.train("shapes", workspace=workspace, config=config, should_stop=lambda: next(calls) == 2)
    (stopped,) = api.list_runs(workspace=workspace)
    assert stopped.status == "stopped"
    api.train("shapes", workspace=workspace, config=config, threads=2)
    (finished,) = api.list_runs(workspace=workspace)
    assert (finished.run_id, finished.status) == (stopped.run_id, "finished")
    assert finished.settings["train.threads"] == "1"
    assert finished.machine["machine.threads"] == "2"

    api.train("shapes", workspace=workspace, config=config, fresh=True)
    fresh, old = api.list_runs(workspace=workspace)
    assert old.run_id == finished.run_id
    open_client(f"sqlite:///{workspace}/mlflow.db").delete_run(fresh.run_id)
    api.train("shapes", workspace=workspace, config=config)
    again, still = api.list_runs(workspace=workspace)
    assert (again.run_id != fresh.run_id, still.run_id) == (True, old.run_id)

    found = api.compare_runs(again.name, old.run_id[:8], workspace=workspace)
    assert found.settings == {}
    assert found.results["val/map50"] == (old.metrics["val/map50"],) * 2
    assert again.metrics["train/loss"] == fresh.metrics["train/loss"]


@contextmanager
def holding(run: Path) -> Iterator[None]:
    """Do as if a process was training this run."""
    with open(run / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def test_starting_anew_closes_the_run_of_a_killed_process(workspace: Path) -> None:
    config = settings(seed=21, epochs=1)
    api.train("shapes", workspace=workspace, config=config)
    first = api.list_runs(workspace=workspace)[0]
    client = open_client(f"sqlite:///{workspace}/mlflow.db")
    client.update_run(first.run_id, status="RUNNING")  # As SIGKILL would have left it.
    api.train("shapes", workspace=workspace, config=config, fresh=True)
    second, before = api.list_runs(workspace=workspace)[:2]
    assert (before.run_id, before.status) == (first.run_id, "unfinished")
    assert second.status == "finished"
    assert client.get_run(first.run_id).info.status == "KILLED"
    api.train("shapes", workspace=workspace, config=settings(seed=21, epochs=2))
    extended = api.list_runs(workspace=workspace)[0]
    assert (extended.run_id, extended.status, extended.epochs) == (second.run_id, "finished", (2, 2))
    assert any(name.startswith("class/ap50/") for name in extended.metrics)
    assert extended.metrics["time/total_s"] > 0


def test_a_killed_run_shows_as_unfinished_and_goes_on(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--seed", "5", "--epochs", "40"]
    process = subprocess.Popen(
        command(workspace, *arguments), stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    while "2/40" not in process.stdout.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    killed = api.list_runs(workspace=workspace)[0]
    assert killed.status == "running"  # It was alive a moment ago.
    real = listing.now_ms
    monkeypatch.setattr(listing, "now_ms", lambda: real() + 10 * 60_000)
    client = open_client(f"sqlite:///{workspace}/mlflow.db")
    with holding(workspace / "runs" / killed.name):  # A process on a machine that cannot reach MLflow for a while.
        assert api.list_runs(workspace=workspace)[0].status == "unfinished"
        assert client.get_run(killed.run_id).info.status == "RUNNING"
    for _ in range(2):
        assert api.list_runs(workspace=workspace)[0].status == "unfinished"
        assert client.get_run(killed.run_id).info.status == "KILLED"
    monkeypatch.undo()

    done = subprocess.run(
        [sys.executable, "-m", "sightline", "runs", "-w", str(workspace)], capture_output=True, text=True, check=True
    )
    assert "shapes-nano-" in done.stdout
    assert done.stderr == ""
