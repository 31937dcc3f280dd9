"""The learning curve of a run: loss by epoch beside the scores of its evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt
import numpy as np

from sightline.report.charts import ACCENT, HEIGHT, SPLIT_COLORS, WIDTH

_MAX_POINTS = 300
_SHOWN = {"map": "mAP", "map50": "mAP50", "f1": "F1", "accuracy": "accuracy"}


def learning_curve(
    epochs: Sequence[float], losses: Sequence[float], history: Sequence[Mapping[str, float]]
) -> alt.HConcatChart:
    """Two panels, or the one that there are numbers for.

    Args:
        epochs: When each step was, in epochs.
        losses: The loss of each step; long runs are averaged over neighbouring steps.
        history: One row an evaluation: `epoch` and scores.
    """
    loss = [_loss_panel(epochs, losses)] if losses else []
    scores = [_score_panel(history)] if history else []
    panels = alt.hconcat(*loss, *scores, spacing=30)
    drawn: alt.HConcatChart = panels.resolve_scale(color="independent")  # Or else the legend stands over the loss.
    return drawn


def _loss_panel(epochs: Sequence[float], losses: Sequence[float]) -> alt.Chart:
    parts = min(_MAX_POINTS, len(losses))
    averaged = zip(_averages(epochs, parts), _averages(losses, parts), strict=True)
    rows = [{"epoch": epoch, "loss": loss} for epoch, loss in averaged]
    # Early losses are often ten times the later ones; on a linear axis nothing would be seen of these.
    kind: Literal["log", "linear"] = "log" if min(row["loss"] for row in rows) > 0 else "linear"
    return _panel(rows).encode(
        x=_epoch_axis(), y=alt.Y("loss:Q", title="training loss", scale=alt.Scale(type=kind, zero=False, nice=False))
    )


def _score_panel(history: Sequence[Mapping[str, float]]) -> alt.Chart:
    shown = [name for name in _SHOWN if any(name in row for row in history)]
    rows = [
        {"epoch": row["epoch"], "score": row[name], "name": _SHOWN[name]}
        for row in history
        for name in shown
        if name in row
    ]
    names = [_SHOWN[name] for name in shown]
    colors = alt.Scale(domain=names, range=list(SPLIT_COLORS[: len(names)]))
    return _panel(rows, point=alt.OverlayMarkDef(size=18)).encode(
        x=_epoch_axis(),
        y=alt.Y("score:Q", title="validation", scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("name:N", scale=colors, legend=alt.Legend(title=None, orient="top", offset=4)),
    )


def _panel(rows: list[dict[str, Any]], **style: Any) -> alt.Chart:
    chart: alt.Chart = alt.Chart({"values": rows}).mark_line(strokeWidth=1.5, color=ACCENT, **style)
    sized: alt.Chart = chart.properties(width=WIDTH, height=HEIGHT)
    return sized


def _epoch_axis() -> alt.X:
    return alt.X("epoch:Q", title="epoch", scale=alt.Scale(zero=True, nice=False), axis=alt.Axis(tickMinStep=1))


def _averages(values: Sequence[float], parts: int) -> list[float]:
    return [float(part.mean()) for part in np.array_split(np.asarray(values, np.float64), parts)] if parts else []
