"""Training runs: how they learned, how good they are, and what each cluster shape bought."""

from typing import TYPE_CHECKING

import streamlit as st

import sightline
from sightline.app import shown
from sightline.report.curve import learning_curve
from sightline.report.name import one_line

if TYPE_CHECKING:
    from sightline.tracking.listing import TrackedRun

_SHAPE = ("nodes", "workers", "threads", "launcher", "backend", "devices", "cpu", "cores", "platform", "node_type")


def page() -> None:
    """Draw the page."""
    with shown.telling():
        runs = sightline.list_runs()
    if not runs:
        shown.empty("train something first.", "sightline train DATASET")
        return
    st.caption("Tick a run to see how it learned, or several to put them side by side.")
    event = st.dataframe(
        [_row(run) for run in runs],
        hide_index=True,
        height=min(38 + 35 * len(runs), 320),
        column_config={
            "score": st.column_config.ProgressColumn(min_value=0, max_value=1, format="%.3f"),
            "images/s": st.column_config.NumberColumn(format="%.1f"),
        },
        on_select="rerun",
        selection_mode="multi-row",
        key="runs-table",
    )
    rows: list[int] = event["selection"]["rows"]
    chosen = [runs[row] for row in rows if row < len(runs)] or runs[:1]
    with shown.telling():
        if len(chosen) > 1:
            _side_by_side(chosen)
        for run in chosen:
            _one(run)


def _row(run: "TrackedRun") -> dict[str, object]:
    return {
        "name": run.name,
        "status": run.status,
        "model": run.model,
        "dataset": run.dataset,
        "epochs": f"{run.epochs[0]}/{run.epochs[1]}",
        "score": run.score,
        "images/s": run.images_per_s,
        "workers": run.workers,
        "started": run.started[:16].replace("T", " "),
    }


def _side_by_side(runs: "list[TrackedRun]") -> None:
    st.subheader("Side by side")
    shapes = [{"run": run.name, **_shape(run), "images/s": run.images_per_s, "score": run.score} for run in runs]
    st.dataframe(shapes, hide_index=True, column_config={"images/s": st.column_config.NumberColumn(format="%.1f")})
    compared = sightline.compare_runs(*(run.run_id for run in runs))
    names = [run.name for run in compared.runs]
    for title, part in (("Results", compared.results), ("Settings that differ", compared.settings)):
        if part:
            with st.expander(title, expanded=title == "Results"):
                st.dataframe(
                    [
                        {"": key, **dict(zip(_distinct(names), map(_text, row), strict=True))}
                        for key, row in part.items()
                    ],
                    hide_index=True,
                )


def _distinct(names: list[str]) -> list[str]:
    """Two runs may have one name."""
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def _text(value: str | float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(run: "TrackedRun") -> dict[str, str]:
    machine = {key.removeprefix("machine."): value for key, value in run.machine.items()}
    return {key: machine[key] for key in _SHAPE if machine.get(key)}


def _one(run: "TrackedRun") -> None:
    with st.container(border=True):
        st.text(f"{run.name} · {run.model} on {run.dataset}")
        if not (shown.workspace().runs / run.name / "config.json").is_file():
            st.caption("Its directory is not in this workspace: only what MLflow has of it is shown.")
            return
        report = sightline.survey_run(run.name)
        if report.figures:
            shown.figures(report.figures)
        if report.history or report.losses:
            curve = learning_curve(report.epochs, report.losses, report.history)
            st.altair_chart(curve, key=f"runs-curve-{run.run_id}")
        if report.classes:
            rows = [
                {"class": one_line(name), **{text: row.get(key) for key, text in report.columns.items()}}
                for name, row in report.classes
            ]
            st.dataframe(rows, hide_index=True)
        if report.pictures:
            with st.expander("Ground truth left, found right"):
                for picture in report.pictures[:6]:
                    st.image(picture.read_bytes(), width="stretch")
        with st.expander("Settings and machine"):
            st.dataframe([{"name": name, "value": value} for name, value in report.settings.items()], hide_index=True)
            st.dataframe([{"name": name, "value": value} for name, value in report.machine.items()], hide_index=True)
