"""The figures of an evaluation in the terminal: means, a row for each class, and who was taken for whom."""

import math

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sightline.metrics.classification import ClassificationResult
from sightline.metrics.confusion import Confusion
from sightline.metrics.rates import Rates
from sightline.metrics.result import DetectionResult
from sightline.report.name import one_line
from sightline.report.quantity import share_text

MOST_IN_MATRIX = 12
"""With more classes than this, the most frequent confusions are listed instead."""

_MOST_LISTED = 10
_NAME_WIDTH = 24
_HEAD_WIDTH = 10


def print_scores(console: Console, result: DetectionResult | ClassificationResult) -> None:
    """Print what an evaluation gave."""
    parts = _detector(result) if isinstance(result, DetectionResult) else _classifier(result)
    console.print(Group(*parts))


def confusion_table(confusion: Confusion, names: list[str]) -> RenderableType:
    """The matrix with names on both sides, or the most frequent confusions where it would be too wide.

    Args:
        confusion: True classes x found ones; one row and column more than names has the background last.
        names: Of the classes.
    """
    with_background = len(confusion) > len(names)
    if len(names) > MOST_IN_MATRIX:
        return _worst_confusions(confusion, names)
    rows = [*names, *(["background"] if with_background else [])]
    columns = [*names, *(["missed"] if with_background else [])]
    table = _table("true / found as", *columns, title="confusion: a row for what is there, a column for what was found")
    for number, name in enumerate(rows):
        cells = [_cell(int(count), number == place) for place, count in enumerate(confusion[number])]
        if with_background and number == len(names):
            cells[-1] = Text("")  # Background that was left alone is everywhere; nobody counts it.
        table.add_row(Text(one_line(name, limit=_NAME_WIDTH)), *cells)
    return table


def _worst_confusions(confusion: Confusion, names: list[str]) -> RenderableType:
    """One class taken for another, most frequent first; what was missed or made up, added up."""
    wrong = confusion[: len(names), : len(names)].copy()
    np.fill_diagonal(wrong, 0)
    num_true = confusion.sum(axis=1)
    table = _table("what is there", "found as", "times", "share", title="the most frequent confusions")
    table.columns[1].justify = "left"
    for place in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_LISTED].tolist():
        true, found = divmod(place, len(names))
        if count := int(wrong[true, found]):
            shown = [Text(one_line(names[label], limit=_NAME_WIDTH)) for label in (true, found)]
            table.add_row(*shown, f"{count:,}", share_text(count, int(num_true[true])))
    if len(confusion) > len(names):
        missed, made_up = int(confusion[:-1, -1].sum()), int(confusion[-1].sum())
        table.add_row("any class", "missed", f"{missed:,}", share_text(missed, int(num_true[:-1].sum())))
        table.add_row("background", "any class", f"{made_up:,}", "")
    return table


def _cell(count: int, right: bool) -> Text:
    if not count:
        return Text("·", "dim")
    return Text(f"{count:,}", "green" if right else "yellow")


def _detector(result: DetectionResult) -> list[RenderableType]:
    parts: list[RenderableType] = [_detector_means(result), "", _detector_classes(result), ""]
    if math.isnan(result.score):
        return [*parts, Text("Nothing was found, so nothing was taken for anything.", "dim")]
    names = [row.name for row in result.per_class]
    return [*parts, confusion_table(result.confusion, names), "", _operating_point(result)]


def _classifier(result: ClassificationResult) -> list[RenderableType]:
    names = [row.name for row in result.per_class]
    return [_classifier_means(result), "", _classifier_classes(result), "", confusion_table(result.confusion, names)]


def _detector_means(result: DetectionResult) -> Text:
    ious = result.iou_thresholds
    over = f"IoU {ious[0]:g}" if len(ious) == 1 else f"IoU {ious[0]:g} to {ious[-1]:g}"
    return Text(
        f"mAP {_figure(result.map)} ({over})   mAP50 {_figure(result.map50)}   mAP75 {_figure(result.map75)}   "
        f"recall of the best 100 {_figure(result.ar100)}   {result.num_images:,} images"
    )


def _classifier_means(result: ClassificationResult) -> Text:
    return Text(
        f"accuracy {_figure(result.accuracy)}   top 5 {_figure(result.top5)}   "
        f"mean F1 {_figure(result.macro_f1)}   {result.num_images:,} images"
    )


def _detector_classes(result: DetectionResult) -> Table:
    columns = ("boxes", "AP", "AP50", "small", "medium", "large", "precision", "recall", "F1")
    table = _table("class", *columns, title="by class; AP of all, small, medium and large objects")
    for row in result.per_class:
        figures = (row.ap, row.ap50, row.ap_small, row.ap_medium, row.ap_large)
        cells = [f"{row.num_true:,}", *map(_figure, figures), *_rate_cells(row.rates)]
        table.add_row(Text(one_line(row.name, limit=_NAME_WIDTH)), *cells)
    total = sum(row.num_true for row in result.per_class)
    means = (result.map, result.map50, result.map_small, result.map_medium, result.map_large)
    table.add_row("all", f"{total:,}", *map(_figure, means), *_rate_cells(result.rates), style="bold")
    return table


def _classifier_classes(result: ClassificationResult) -> Table:
    table = _table("class", "images", "precision", "recall", "F1", title="by class")
    for row in result.per_class:
        table.add_row(Text(one_line(row.name, limit=_NAME_WIDTH)), f"{row.num_true:,}", *_rate_cells(row.rates))
    return table


def _operating_point(result: DetectionResult) -> Text:
    return Text(
        f"precision {_figure(result.rates.precision)}   recall {_figure(result.rates.recall)}   "
        f"F1 {_figure(result.rates.f1)}   at score {result.score:.3f}, IoU {result.iou:g}, as is the confusion"
    )


def _rate_cells(rates: Rates) -> list[str]:
    return [_figure(rates.precision), _figure(rates.recall), _figure(rates.f1)]


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _table(first: str, *columns: str, title: str) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, header_style="dim", padding=(0, 1))
    table.add_column(Text(first))
    for column in columns:
        table.add_column(Text(one_line(column, limit=_HEAD_WIDTH)), justify="right", no_wrap=True)
    return table
