"""Pages to send to a colleague: a detection job, a run or a dataset as one HTML file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.errors import ConfigError, NotFoundError
from sightline.workspace import Workspace

if TYPE_CHECKING:
    from sightline.report.run_report import RunReport

Kind = Literal["job", "run", "dataset"]


def write_report(
    name: str,
    to: str | Path | None = None,
    *,
    kind: Kind | None = None,
    pictures: int = 12,
    workspace: str | Path | None = None,
) -> Path:
    """Write what there is to see of a detection job, a run or a dataset into one HTML file; returns its path.

    The file needs nothing else: no network, no scripts.

    Args:
        name: Of a job, run or dataset of the workspace.
        to: The file; default: `reports/NAME.html` in the workspace. One that is there is replaced.
        kind: Which one is meant, if several have the name.
        pictures: How many images of a job to show.

    Raises:
        NotFoundError: There is none of this name.

    >>> import sightline
    >>> sightline.write_report("boards-boards-1a2b3c4d", "found.html")  # doctest: +SKIP
    """
    root = Workspace.find(workspace)
    found = _kinds(name, root)
    if not found:
        raise NotFoundError(
            f"there is no job, run or dataset {name!r}: `sightline detections`, `sightline runs` and "
            "`sightline datasets` list them"
        )
    if kind is None and len(found) > 1:
        raise ConfigError(f"{name!r} is a {' and a '.join(found)}: say which with --kind")
    chosen = kind or found[0]
    if chosen not in found:
        raise NotFoundError(f"there is no {chosen} {name!r}, only a {' and a '.join(found)}")
    path = Path(to).expanduser() if to else root.root / "reports" / f"{name}.html"
    _WRITERS[chosen](name, path, root, pictures)
    return path


def _kinds(name: str, root: Workspace) -> list[Kind]:
    from sightline.detection.past import list_jobs

    there: dict[Kind, bool] = {
        "job": any(job.name == name for job in list_jobs(root)),
        "run": (root.runs / name / "config.json").is_file(),
        "dataset": (root.datasets / name).is_dir(),
    }
    return [kind for kind, found in there.items() if found]


def _write_job(name: str, path: Path, root: Workspace, pictures: int) -> None:
    from sightline.detection.overview import survey_job
    from sightline.detection.past import list_jobs
    from sightline.report.job_report import write_job_page

    job = next(job for job in list_jobs(root) if job.name == name)
    write_job_page(survey_job(root, job, pictures=pictures), path)


def _write_run(name: str, path: Path, root: Workspace, _: int) -> None:
    from sightline.report.run_report import write_run_page

    write_run_page(_survey_run(name, root.runs / name), path)


def _write_dataset(name: str, path: Path, root: Workspace, _: int) -> None:
    from sightline.api import inspect

    inspect(name, html=path, workspace=root.root)


def survey_run(name: str, *, workspace: str | Path | None = None) -> "RunReport":
    """A run of the workspace in figures: how it learned, how good it is, and on what it ran.

    >>> import sightline
    >>> sightline.survey_run("boards-nano-1a2b3c4d").figures  # doctest: +SKIP
    """
    directory = Workspace.find(workspace).runs / name
    if not (directory / "config.json").is_file():
        raise NotFoundError(f"there is no run {name!r} in this workspace: `sightline runs` lists them")
    return _survey_run(name, directory)


def _survey_run(name: str, directory: Path) -> "RunReport":
    from sightline.models.bundle import open_bundle
    from sightline.report.card import CLASS_COLUMNS, figure_name
    from sightline.report.run_report import RunReport
    from sightline.training.record import CONFIG, MACHINE, SCORES
    from sightline.training.step_log import FILE, StepLog
    from sightline.workspace import MODEL

    config, machine = _read(directory / CONFIG), _read(directory / MACHINE)
    scores = _read(directory / SCORES)
    steps = StepLog(directory).read() if (directory / FILE).is_file() else []
    bundle = open_bundle(directory / MODEL) if (directory / MODEL).is_dir() else None
    info = bundle.info if bundle else None
    figures = (
        {figure_name(key): f"{value:.3f}" for key, value in info.metrics.items() if figure_name(key)} if info else {}
    )
    if scores:
        figures |= {"Best epoch": str(scores["best_epoch"])}
    rows = list(zip(info.classes, info.per_class, strict=False)) if info else []
    columns = {key: text for key, text in CLASS_COLUMNS.items() if any(key in row for _, row in rows)}
    return RunReport(
        name=name,
        model=config.get("train", {}).get("model", ""),
        dataset=info.dataset.name if info and info.dataset else "",
        figures=figures,
        classes=rows if columns else (),
        columns=columns,
        epochs=[row[1] for row in steps],
        losses=[row[2] for row in steps],
        history=scores.get("history", []),
        pictures=bundle.pictures if bundle else [],
        settings=_flat({part: config.get(part, {}) for part in ("train", "augment", "workers", "loader")}),
        machine=_flat(machine),
    )


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values by dotted name, without what is empty."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", [], {}):
            found[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found


_WRITERS = {"job": _write_job, "run": _write_run, "dataset": _write_dataset}
