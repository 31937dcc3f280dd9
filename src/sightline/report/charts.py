"""Charts of an inspection. Functions give Altair charts, which the app shows as they are; pages take them as SVG.

Charts carry no colours of text or background: the page's own style, light or dark, gives them (`to_svg`).
"""

import json
from typing import Any

import altair as alt

from sightline.report.histogram import Histogram
from sightline.report.inspection import BoxSummary, Inspection
from sightline.report.name import one_line

WIDTH = 300
HEIGHT = 150
BAR_HEIGHT = 18
MAX_CLASSES = 30
_LABEL_PX = 130
_INK = "#1f2937"

ACCENT = "#3b82b8"
SPLIT_COLORS = ("#3b82b8", "#d99a2b", "#4aa384", "#b5699a", "#8a8f98")
"""Splits in their order; the same tones are readable on white and on near-black."""

_STYLE: dict[str, Any] = {
    "background": None,
    "aria": False,
    "padding": {"left": 14, "right": 14, "top": 4, "bottom": 4},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor",
        "labelOverlap": True,
        "titleColor": "currentColor",
        "labelOpacity": 0.75,
        "titleOpacity": 0.75,
        "titleFontWeight": 400,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titlePadding": 8,
        "domainColor": "currentColor",
        "domainOpacity": 0.25,
        "tickColor": "currentColor",
        "tickOpacity": 0.25,
        "gridColor": "currentColor",
        "gridOpacity": 0.1,
    },
    "legend": {"labelColor": "currentColor", "labelFontSize": 11, "labelOpacity": 0.75, "symbolType": "square"},
}


def to_svg(chart: alt.Chart | alt.LayerChart | alt.HConcatChart) -> str:
    """Render to SVG text, without a browser and without the network; `currentColor` is the colour of its text."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg({**chart.to_dict(), "config": _STYLE}, allowed_base_urls=[])
    return svg


def to_png(chart: alt.Chart | alt.HConcatChart) -> bytes:
    """Render to PNG, dark on white, for places that show pictures only."""
    import vl_convert

    style = {**json.loads(json.dumps(_STYLE).replace("currentColor", _INK)), "background": "white"}
    png: bytes = vl_convert.vegalite_to_png({**chart.to_dict(), "config": style}, scale=2, allowed_base_urls=[])
    return png


def class_chart(inspection: Inspection, *, limit: int = MAX_CLASSES) -> alt.Chart:
    """Boxes (or images, for classification) of the most frequent classes, stacked by split."""
    shown = list(inspection.class_totals())[:limit]
    splits = list(inspection.splits)
    rows = [
        {
            "class": one_line(name),
            "rank": rank,
            "split": one_line(split),
            "order": order,
            "count": inspection.class_counts(split).get(name, 0),
        }
        for rank, name in enumerate(shown)
        for order, split in enumerate(splits)
    ]
    colors = [SPLIT_COLORS[number % len(SPLIT_COLORS)] for number in range(len(splits))]
    # Sorted by a number: names would become part of an expression.
    by_rank = alt.EncodingSortField(field="rank", op="min")
    legend = alt.Legend(title=None, orient="top", offset=4) if len(splits) > 1 else None
    bars = _bars(rows, height={"band": 0.72}).encode(
        y=alt.Y("class:N", sort=by_rank, title=None, axis=_name_axis()),
        x=alt.X("count:Q", title=inspection.count_unit, axis=_count_axis()),
        color=alt.Color(
            "split:N", scale=alt.Scale(domain=[one_line(split) for split in splits], range=colors), legend=legend
        ),
        order="order:Q",
        tooltip=["class:N", "split:N", alt.Tooltip("count:Q", format=",")],
    )
    return _sized(bars, height=BAR_HEIGHT * max(len(shown), 1))


def count_chart(histogram: Histogram, *, title: str, unit: str) -> alt.Chart:
    """How often whole numbers occur, such as boxes in an image."""
    edges = [int(edge) for edge in histogram.edges]
    bins = zip(edges[:-1], edges[1:], histogram.counts, strict=True)
    rows = [{"bin": _range_text(low, high), "count": count} for low, high, count in bins]
    axis = alt.Axis(labelAngle=0, labelOverlap=True, ticks=False)
    bars = _bars(rows, color=ACCENT).encode(
        x=alt.X("bin:N", sort=None, title=title, axis=axis, scale=alt.Scale(paddingInner=0.12)),
        y=alt.Y("count:Q", title=unit, axis=_count_axis()),
        tooltip=["bin:N", alt.Tooltip("count:Q", format=",")],
    )
    return _sized(bars)


def size_chart(boxes: BoxSummary) -> alt.Chart:
    """Small, medium and large boxes, as COCO counts them."""
    sizes = {"small, < 32²": boxes.small, "medium, < 96²": boxes.medium, "large": boxes.large}
    rows = [{"size": size, "count": count} for size, count in sizes.items()]
    bars = _bars(rows, color=ACCENT).encode(
        x=alt.X("size:N", sort=None, title="box area, pixels", axis=alt.Axis(labelAngle=0, ticks=False)),
        y=alt.Y("count:Q", title="boxes", axis=_count_axis()),
        tooltip=["size:N", alt.Tooltip("count:Q", format=",")],
    )
    return _sized(bars)


def pixels_chart(histogram: Histogram, *, title: str) -> alt.Chart:
    """Lengths in pixels on a logarithmic axis."""
    ticks = [2**power for power in range(17)]
    return _log_chart(histogram, title=title, axis=alt.Axis(values=_within(ticks, histogram), format=",d", grid=False))


def share_chart(histogram: Histogram, *, title: str) -> alt.Chart:
    """Shares of the image's area on a logarithmic axis."""
    ticks = [10.0**power for power in range(-6, 1)]
    return _log_chart(histogram, title=title, axis=alt.Axis(values=_within(ticks, histogram), format="~%", grid=False))


def aspect_chart(histogram: Histogram, *, title: str) -> alt.Chart:
    """Width by height on a logarithmic axis; 1:1 is square."""
    ticks = [2.0**power for power in range(-6, 7)]
    text = "datum.value < 1 ? '1:' + format(1 / datum.value, 'd') : format(datum.value, 'd') + ':1'"
    return _log_chart(
        histogram, title=title, axis=alt.Axis(values=_within(ticks, histogram), labelExpr=text, grid=False)
    )


def _log_chart(histogram: Histogram, *, title: str, axis: alt.Axis) -> alt.Chart:
    bins = zip(histogram.edges[:-1], histogram.edges[1:], histogram.counts, strict=True)
    rows = [{"low": low, "high": high, "count": count} for low, high, count in bins]
    domain = [histogram.edges[0], histogram.edges[-1]] if rows else [1, 10]
    bars = _bars(rows, color=ACCENT, binSpacing=1).encode(
        x=alt.X("low:Q", title=title, bin="binned", axis=axis, scale=alt.Scale(type="log", domain=domain, nice=False)),
        x2="high:Q",
        y=alt.Y("count:Q", title="boxes", axis=_count_axis()),
        tooltip=[alt.Tooltip(f"{edge}:Q", format=".3~g") for edge in ("low", "high")]
        + [alt.Tooltip("count:Q", format=",")],
    )
    return _sized(bars)


def _bars(rows: list[dict[str, Any]], **style: Any) -> alt.Chart:
    # Rows are handed over as they are, so that no data frame library is needed.
    chart: alt.Chart = alt.Chart({"values": rows}).mark_bar(**style)
    return chart


def _sized(chart: alt.Chart, *, height: int = HEIGHT) -> alt.Chart:
    sized: alt.Chart = chart.properties(width=WIDTH, height=height)
    return sized


def _name_axis() -> alt.Axis:
    return alt.Axis(labelLimit=_LABEL_PX, ticks=False, domain=False)


def _count_axis() -> alt.Axis:
    """Few ticks, whole numbers, thousands as 1k."""
    text = "datum.value < 1000 ? format(datum.value, 'd') : format(datum.value, '.3~s')"
    return alt.Axis(labelExpr=text, tickCount=4, tickMinStep=1, ticks=False, domain=False)


def _within(ticks: list[Any], histogram: Histogram) -> list[Any]:
    """The ticks that lie on the axis; every other one when they are many."""
    if not histogram.edges:
        return []
    found = [tick for tick in ticks if histogram.edges[0] <= tick * 1.0001 and tick <= histogram.edges[-1] * 1.0001]
    return found if len(found) <= 9 else found[len(found) % 2 :: 2]


def _range_text(low: int, high: int) -> str:
    return str(low) if high - low == 1 else f"{low}-{high - 1}"
