"""The runs of an experiment, newest first."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.config import TrackingConfig
from sightline.errors import NotFoundError, TrackingError
from sightline.tracking.library import telling
from sightline.tracking.mlflow_tracker import LOST, SEEN, close_lost, noted_run
from sightline.tracking.sender import EVERY_S, now_ms
from sightline.tracking.store import Store
from sightline.tracking.tracker import EPOCHS
from sightline.workspace import Workspace, is_locked

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger("sightline.tracking")

RunStatus = Literal["running", "finished", "failed", "stopped", "unfinished"]
"""A stopped run was asked to; an unfinished one was killed, or its machine died. Both go on with the same command."""

_PAGE = 1000
_ALIVE_MS = int(EVERY_S * 1000) * 4
_STATUS: dict[str, RunStatus] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "stopped"}


@dataclass(frozen=True)
class TrackedRun:
    """One run as MLflow has it.

    Attributes:
        epochs: Epochs that were scored, and those that were asked for.
        score: The best; None before the first evaluation.
        started: ISO 8601, UTC.
        settings: By dotted name.
        metrics: The last value of each.
        machine: Where it ran, and library versions.
    """

    name: str
    run_id: str
    status: RunStatus
    model: str
    dataset: str
    epochs: tuple[int, int]
    score: float | None
    images_per_s: float | None
    workers: int
    started: str
    settings: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)


def list_runs(config: TrackingConfig, root: Path, *, limit: int | None = None) -> list[TrackedRun]:
    """The runs of the experiment, newest first; none, and nothing is made, where there is no database yet.

    A run of this workspace that MLflow believes to run, but whose process is gone, is closed.
    """
    store = Store.find(config, root)
    if store.database and not store.database.exists():
        return []
    client = store.open()
    experiment_id = store.find_experiment(client)
    if experiment_id is None:
        return []
    found: list[TrackedRun] = []
    token: str | None = None
    with telling(store.uri):
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = client.search_runs(
                [experiment_id], max_results=size, order_by=["attributes.start_time DESC"], page_token=token
            )
            found += [_tracked(run) for run in page]
            for run in page:
                if _is_lost(run, root):
                    _close(client, store, run)
            token = page.token
            if not token:
                break
    return found


def choose_runs(runs: list[TrackedRun], names: list[str]) -> list[TrackedRun]:
    """Runs by name (the newest of that name) or by the first letters of their id, in the order asked for."""
    return [_choose(runs, name) for name in names]


def _choose(runs: list[TrackedRun], name: str) -> TrackedRun:
    named = [run for run in runs if run.name == name]
    found = named or [run for run in runs if len(name) >= 4 and run.run_id.startswith(name)]
    if not found:
        known = ", ".join(dict.fromkeys(run.name for run in runs[:6])) or "none"
        raise NotFoundError(f"there is no run {name!r}; the newest are: {known}. `sightline runs` lists all")
    return found[0]


def _tracked(run: "Run") -> TrackedRun:
    tags: Mapping[str, str] = run.data.tags
    settings, metrics = dict(run.data.params), dict(run.data.metrics)
    if EPOCHS in tags:
        settings["train.epochs"] = tags[EPOCHS]
    return TrackedRun(
        name=run.info.run_name or run.info.run_id,
        run_id=run.info.run_id,
        status=_status(run.info.status, tags),
        model=settings.get("train.model", ""),
        dataset=tags.get("sightline.dataset", ""),
        epochs=(int(metrics.get("val/epoch", 0)), _whole(settings.get("train.epochs"))),
        score=metrics.get("run/best_score"),
        images_per_s=metrics.get("run/images_per_s"),
        workers=_whole(tags.get("machine.workers")) or 1,
        started=datetime.fromtimestamp(run.info.start_time / 1000, UTC).isoformat(timespec="seconds"),
        settings=settings | {name.removeprefix("sightline."): tags[name] for name in sorted(tags) if _is_setting(name)},
        metrics=metrics,
        machine={name: tags[name] for name in sorted(tags) if name.startswith(("machine.", "version."))},
    )


def _is_setting(tag: str) -> bool:
    return tag.startswith("sightline.") and tag not in (SEEN, LOST, EPOCHS)


def _status(status: Any, tags: Mapping[str, str]) -> RunStatus:
    """A run that MLflow believes to run, but that gives no sign of life, was killed."""
    if tags.get(LOST) == "true" and status == "KILLED":
        return "unfinished"
    return _STATUS.get(str(status), "running" if _gives_signs(tags) else "unfinished")


def _gives_signs(tags: Mapping[str, str]) -> bool:
    return now_ms() - _whole(tags.get(SEEN)) < _ALIVE_MS


def _close(client: "MlflowClient", store: Store, run: "Run") -> None:
    """Close a lost run; where that may not be written, the list is still of use."""
    try:
        with telling(store.uri):
            close_lost(client, run.info.run_id)
    except TrackingError as error:
        _log.warning("run %s has no process any more, but cannot be closed: %s", run.info.run_name, error)


def _is_lost(run: "Run", root: Path) -> bool:
    """Whether a run is open though its process is gone: it gives no sign of life and does not hold its lock.

    Both, for a lock on a network's disk may be known on one machine only. Runs of other workspaces are left alone.
    """
    directory = Workspace(root).runs / (run.info.run_name or "")
    is_open = run.info.status == "RUNNING" and not _gives_signs(run.data.tags)
    return is_open and noted_run(directory) == run.info.run_id and not is_locked(directory)


def _whole(text: str | None) -> int:
    """A count, or 0 where another program wrote something else."""
    return int(text) if text and text.isdecimal() else 0
