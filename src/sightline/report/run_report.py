"""A training run as a page: how it learned, how good it is, what it finds, and on what it ran."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from sightline.report.charts import to_svg
from sightline.report.curve import learning_curve
from sightline.report.page import environment, write_whole

_MAX_PICTURES = 12


@dataclass(frozen=True)
class RunReport:
    """A run in figures.

    Attributes:
        figures: Of its best model on validation images, by the name that people know.
        classes: Names, and figures of each.
        columns: Which figures of a class are shown, by key and heading.
        epochs: When each step was, in epochs; `losses` has its loss.
        history: One row an evaluation.
        pictures: JPEG files: truth left, findings right.
        settings: By dotted name; `machine` says where it ran.
    """

    name: str
    model: str
    dataset: str
    figures: Mapping[str, str]
    classes: Sequence[tuple[str, Mapping[str, float]]] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    epochs: Sequence[float] = ()
    losses: Sequence[float] = ()
    history: Sequence[Mapping[str, float]] = ()
    pictures: Sequence[Path] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)


def write_run_page(report: RunReport, path: Path) -> None:
    """Write one HTML file that needs nothing else."""
    curve = Markup(to_svg(learning_curve(report.epochs, report.losses, report.history))) if report.history else None
    shown = [_data_uri(picture) for picture in report.pictures[:_MAX_PICTURES]]
    write_whole(path, environment().get_template("run.html").render(report=report, curve=curve, pictures=shown))


def _data_uri(picture: Path) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")
