"""Runs kept in MLflow."""

import io
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.config import TrackingConfig
from sightline.errors import TrackingError
from sightline.secrets import HIDDEN, looks_secret, redact
from sightline.tracking.library import is_missing, telling
from sightline.tracking.sender import Point, Sender, now_ms
from sightline.tracking.store import Store
from sightline.tracking.tracker import RunFacts, Status, Tracker, Untracked

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger("sightline.tracking")

NOTE = "tracking.json"
"""In the run's directory: which run of MLflow it is."""
SEEN = "sightline.seen"
"""The tag that says when a run last gave a sign of life, in milliseconds."""
LOST = "sightline.lost"
"""The tag that says whether the process of a run was killed; then another process has closed the run."""
_PER_BATCH = 90
_MAX_TEXT = 5000
_PATIENCE_S: dict[Status, float] = {"FINISHED": 30.0, "FAILED": 5.0, "KILLED": 5.0}
"""How long the end of a run waits for a server; whoever stops one gives it half a minute or less."""


def open_tracker(config: TrackingConfig, root: Path) -> Tracker:
    """The tracker that the settings ask for; a server that cannot be reached is an error now, not later."""
    if not config.enabled:
        return Untracked()
    store = Store.find(config, root)
    client = store.open()
    return MlflowTracker(store, client, store.make_experiment(client))


def noted_run(directory: Path) -> str | None:
    """The id of the run of MLflow that a run's directory names, if it names one."""
    try:
        return str(json.loads((directory / NOTE).read_text("utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def close_lost(client: "MlflowClient", run_id: str) -> None:
    """Close a run whose process is gone without having closed it."""
    client.set_tag(run_id, LOST, "true")
    with redirect_stdout(io.StringIO()):  # MLflow prints the run's address, password and all.
        client.set_terminated(run_id, status="KILLED")


class MlflowTracker:
    """One run in MLflow."""

    def __init__(self, store: Store, client: "MlflowClient", experiment_id: str) -> None:
        self._store, self._client, self._experiment_id = store, client, experiment_id
        self._run_id = ""
        self._sender = Sender(self._send)

    @property
    def place(self) -> str:
        """Where runs are kept, without credentials."""
        return self._store.place

    def start(self, run: RunFacts) -> bool:
        """Begin a run, or go on with the one that its directory names, if that is still there."""
        with telling(self._store.uri):
            known = self._go_on(run.directory)
            goes_on = known is not None
            if known is None:
                created = self._client.create_run(self._experiment_id, run_name=run.name)
                self._run_id, known = created.info.run_id, {}
                note = {"run_id": self._run_id, "experiment": self._store.experiment, "place": self.place}
                (run.directory / NOTE).write_text(json.dumps(note, indent=2) + "\n", "utf-8")
            # MLflow never changes a parameter: those of the first start stay.
            settings = {name: value for name, value in run.settings.items() if name not in known}
            self._write(settings, {**run.tags, SEEN: str(now_ms()), LOST: "false"})
        self._sender.start()
        return goes_on

    def abandon(self, directory: Path) -> None:
        """Close the run that a directory names, if it is still open."""
        run_id = noted_run(directory)
        with telling(self._store.uri):
            found = self._get(run_id) if run_id else None
            if found and found.info.status == "RUNNING":
                close_lost(self._client, found.info.run_id)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Queue the numbers that are finite."""
        time_ms = now_ms()
        self._sender.add([Point(name, value, step, time_ms) for name, value in metrics.items() if math.isfinite(value)])

    def flush(self) -> None:
        """Let the sender send what is queued."""
        self._sender.flush()

    def finish(self, status: Status, artifacts: Sequence[Path] = ()) -> None:
        """Send the rest, the files, and how the run ended; a server that is away loses them, never the run."""
        complete = self._sender.close(_PATIENCE_S[status])
        try:
            if complete or status == "FINISHED":
                self._end(status, artifacts)
        except TrackingError as error:
            complete = False
            _log.warning("%s", error)
        if not complete:
            _log.warning("the run is whole in its directory, but not in MLflow at %s", self.place)

    def _end(self, status: Status, artifacts: Sequence[Path]) -> None:
        with telling(self._store.uri):
            for path in artifacts:
                self._upload(path)
            with redirect_stdout(io.StringIO()):  # MLflow prints the run's address, password and all.
                self._client.set_terminated(self._run_id, status=status)

    def _go_on(self, directory: Path) -> dict[str, str] | None:
        """The settings that MLflow has of the noted run, after opening it again; None if there is none."""
        run_id = noted_run(directory)
        found = self._get(run_id) if run_id else None
        if found is None:
            return None
        self._run_id = found.info.run_id
        self._client.update_run(self._run_id, status="RUNNING")
        return dict(found.data.params)

    def _get(self, run_id: str) -> "Run | None":
        """A run of MLflow; None if it is not there, or deleted."""
        try:
            found = self._client.get_run(run_id)
        except Exception as error:
            if is_missing(error):
                return None
            raise
        return found if found.info.lifecycle_stage == "active" else None

    def _write(self, settings: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        for part in _parts(settings):
            self._client.log_batch(self._run_id, params=[Param(name, value) for name, value in part])
        for part in _parts(tags):
            self._client.log_batch(self._run_id, tags=[RunTag(name, value) for name, value in part])

    def _send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics = [Metric(point.name, point.value, point.time_ms, point.step) for point in points]
        with telling(self._store.uri):
            self._client.log_batch(self._run_id, metrics=metrics, tags=[RunTag(SEEN, str(now_ms()))])

    def _upload(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), path.name)
        elif path.is_file():
            self._client.log_artifact(self._run_id, str(path))


def _parts(values: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """Names and texts without secrets, so many at a time as MLflow takes."""
    safe = ((name, HIDDEN if looks_secret(name) else redact(value)[:_MAX_TEXT]) for name, value in values.items())
    while part := list(islice(safe, _PER_BATCH)):
        yield part
