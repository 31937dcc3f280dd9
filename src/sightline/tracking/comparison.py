"""Runs side by side: what differs in their settings and machines, and all their results."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sightline.tracking.listing import TrackedRun

Row = tuple[str | float | None, ...]


@dataclass(frozen=True)
class Comparison:
    """One column a run, in the order asked for; None where a run has no such value.

    Attributes:
        settings: Those that differ.
        results: Scores, speed, memory and where the time went: the last value of each.
        machine: What differs in machines, workers and library versions.
    """

    runs: tuple[TrackedRun, ...]
    settings: dict[str, Row]
    results: dict[str, Row]
    machine: dict[str, Row]


def compare(runs: Iterable[TrackedRun]) -> Comparison:
    """Put runs side by side.

    A metric of single steps, such as `train/loss`, says little by its last value and is left to MLflow's own curves;
    metrics of single classes would be hundreds of rows.
    """
    chosen = tuple(runs)
    results = _rows(chosen, lambda run: {name: run.metrics[name] for name in run.metrics if _is_result(name)})
    return Comparison(
        runs=chosen,
        settings=_differing(_rows(chosen, lambda run: run.settings)),
        results=results,
        machine=_differing(_rows(chosen, lambda run: run.machine)),
    )


def _rows(runs: tuple[TrackedRun, ...], values: Callable[[TrackedRun], Mapping[str, str | float]]) -> dict[str, Row]:
    columns = [values(run) for run in runs]
    names = sorted({name for column in columns for name in column})
    return {name: tuple(column.get(name) for column in columns) for name in names}


def _differing(rows: dict[str, Row]) -> dict[str, Row]:
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def _is_result(name: str) -> bool:
    return not name.startswith(("train/", "class/"))
