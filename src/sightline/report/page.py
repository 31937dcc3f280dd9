"""An inspection as one HTML file that needs nothing else: no network, no scripts, light and dark."""

import os
import tempfile
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.data.dataset import Dataset
from sightline.errors import StorageError
from sightline.report import charts
from sightline.report.colors import hex_color_of
from sightline.report.finding import Finding
from sightline.report.inspection import Inspection
from sightline.report.name import one_line
from sightline.report.quantity import bytes_text, number_text, share_text
from sightline.report.thumbnails import Thumbnail, close_up, thumbnail

_MAX_ROWS = 500
_CLOSE_UPS = 4
"""Pictures for each finding; the other examples are named."""


def write_inspection_page(dataset: Dataset, inspection: Inspection, path: Path) -> None:
    """Write the page; a file of that name is replaced when the new one is complete.

    >>> import sightline
    >>> dataset = sightline.open_dataset("boards")                                       # doctest: +SKIP
    >>> write_inspection_page(dataset, sightline.inspect("boards"), Path("boards.html"))  # doctest: +SKIP
    """
    page = (
        environment()
        .get_template("inspection.html")
        .render(
            inspection=inspection,
            charts=_charts(inspection),
            num_charted=charts.MAX_CLASSES,
            max_rows=_MAX_ROWS,
            mosaic=[thumbnail(dataset, position) for position in inspection.showcase],
            close_ups={finding.kind: _close_ups(dataset, finding) for finding in inspection.findings},
        )
    )
    write_whole(path, page)


def environment() -> Environment:
    """Templates of pages; every name that they show is escaped."""
    environment = Environment(
        loader=PackageLoader("sightline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": bytes_text,
        "number": number_text,
        "shown": one_line,
        "last_part": lambda name: name.rpartition("/")[2] or name,
        "color": hex_color_of,
    }
    environment.globals["share"] = share_text
    return environment


def _charts(inspection: Inspection) -> dict[str, Markup]:
    """SVG by name; only the renderer's output is trusted, and that escapes what it is given."""
    found = {"classes": charts.class_chart(inspection)}
    if inspection.boxes and inspection.boxes_per_image and inspection.num_boxes > inspection.num_ignored_boxes:
        boxes = inspection.boxes
        found |= {
            "per image": charts.count_chart(inspection.boxes_per_image, title="boxes in an image", unit="images"),
            "size": charts.size_chart(boxes),
            "width": charts.pixels_chart(boxes.width, title="box width, pixels"),
            "height": charts.pixels_chart(boxes.height, title="box height, pixels"),
            "area": charts.share_chart(boxes.area_share, title="box area, share of the image"),
            "aspect": charts.aspect_chart(boxes.aspect, title="box width : height"),
        }
    return {name: Markup(charts.to_svg(chart)) for name, chart in found.items()}


def _close_ups(dataset: Dataset, finding: Finding) -> list[Thumbnail]:
    return [close_up(dataset, example) for example in finding.examples[:_CLOSE_UPS]]


def write_whole(path: Path, text: str) -> None:
    """Write beside the target, then rename: nobody ever opens half a page."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write the page to {str(path)!r}: {error.strerror or error}") from None
