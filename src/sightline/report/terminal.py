"""An inspection in the terminal: a few compact tables, printed on the console that is given."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sightline.report.colors import hex_color_of
from sightline.report.finding import Finding, Severity
from sightline.report.histogram import Quantiles
from sightline.report.inspection import BoxSummary, Inspection
from sightline.report.name import one_line
from sightline.report.quantity import bytes_text, number_text, share_text
from sightline.report.rejected import RejectGroup

_MAX_CLASSES = 20
_MAX_EXAMPLES = 3
_MAX_NAMES = 8
_STYLES: dict[Severity, str] = {"problem": "bold red", "warning": "yellow", "note": "cyan"}


def print_inspection(console: Console, inspection: Inspection) -> None:
    """Print what was found, most needed last, where the eye is when the prompt returns."""
    parts: list[RenderableType] = [_headline(inspection), "", _class_table(inspection), "", _size_table(inspection)]
    if inspection.boxes:
        parts.append(_coco_sizes(inspection.boxes))
    if inspection.rejects:
        parts += ["", _reject_table(inspection.rejects)]
    findings = inspection.findings
    parts += ["", _finding_table(findings) if findings else Text("Nothing suspicious.", "green")]
    console.print(Group(*parts))


def _headline(inspection: Inspection) -> Text:
    parts = [f"{inspection.num_images:,} images", f"{len(inspection.classes):,} classes"]
    if inspection.task == "detection":
        parts.insert(1, f"{inspection.num_boxes:,} boxes")
        parts.append(f"{inspection.num_empty:,} images without boxes")
    parts += [bytes_text(inspection.image_bytes), f"from {inspection.source_format}"]
    # Text, not markup: a name may hold brackets that rich would take for a style.
    return Text.assemble((one_line(inspection.name, limit=60), "bold"), "  ", ", ".join(parts))


def _class_table(inspection: Inspection) -> Table:
    splits = list(inspection.splits)
    table = _table("class", *splits, "all", title=f"{inspection.count_unit} by class and split")
    names = list(inspection.class_totals())
    for name in names[:_MAX_CLASSES]:
        table.add_row(_class_text(inspection, name), *_class_cells(inspection, [name]))
    if rest := names[_MAX_CLASSES:]:
        table.add_row(f"{len(rest):,} more classes", *_class_cells(inspection, rest), style="dim")
    images = [inspection.splits[split].images for split in splits]
    table.add_row("images", *map(number_text, [*images, sum(images)]), style="bold")
    return table


def _class_cells(inspection: Inspection, names: list[str]) -> list[str]:
    """Counts of some classes together: one for each split, and their sum."""
    per_split = [inspection.class_counts(split) for split in inspection.splits]
    counts = [sum(counts.get(name, 0) for name in names) for counts in per_split]
    return [number_text(count) for count in [*counts, sum(counts)]]


def _class_text(inspection: Inspection, name: str) -> Text:
    color = hex_color_of(inspection.classes.index(name))
    return Text.assemble(("■ ", color), one_line(name, limit=40))


def _size_table(inspection: Inspection) -> Table:
    table = _table("pixels", "smallest", "5 %", "median", "95 %", "largest", title="sizes")
    _add_quantiles(table, "image width", inspection.images.width_px)
    _add_quantiles(table, "image height", inspection.images.height_px)
    if inspection.boxes:
        _add_quantiles(table, "box width", inspection.boxes.width_px)
        _add_quantiles(table, "box height", inspection.boxes.height_px)
    return table


def _add_quantiles(table: Table, name: str, values: Quantiles | None) -> None:
    if values:
        numbers = (values.minimum, values.p05, values.median, values.p95, values.maximum)
        table.add_row(name, *map(number_text, numbers))


def _coco_sizes(boxes: BoxSummary) -> Text:
    measured = boxes.small + boxes.medium + boxes.large
    sizes = {"small (< 32² px)": boxes.small, "medium (< 96² px)": boxes.medium, "large": boxes.large}
    return Text(
        "  boxes: " + ", ".join(f"{share_text(count, measured)} {size}" for size, count in sizes.items()), "dim"
    )


def _reject_table(rejects: tuple[RejectGroup, ...]) -> Table:
    table = _table(
        "what happened", "why", "times", "for example", title="not used as it was", left=("why", "for example")
    )
    for group in rejects:
        names = [one_line(example.file_name, limit=50) for example in group.examples[:1]]
        table.add_row(
            Text(group.action), Text(one_line(group.reason)), number_text(group.count), Text(", ".join(names))
        )
    return table


def _finding_table(findings: tuple[Finding, ...]) -> Table:
    table = _table("", "what", "count", "where", title="to look at", left=("what", "where"))
    for finding in findings:
        severity = Text(finding.severity, _STYLES[finding.severity])
        count = number_text(finding.count) if finding.count else ""
        table.add_row(severity, Text(finding.kind), count, Text(_places(finding)))
    return table


def _places(finding: Finding) -> str:
    if finding.names:
        shown = [one_line(name, limit=30) for name in finding.names[:_MAX_NAMES]]
    else:
        shown = [one_line(example.file_name, limit=40) for example in finding.examples[:_MAX_EXAMPLES]]
    return ", ".join([*shown, "…"] if len(shown) < finding.count else shown)


def _table(*columns: str, title: str, left: tuple[str, ...] = ()) -> Table:
    """The first column and the named ones are text, the others numbers."""
    table = Table(title=Text(title, "bold"), title_justify="left", box=None, header_style="dim", padding=(0, 1))
    for number, column in enumerate(columns):
        is_text = number == 0 or column in left
        table.add_column(Text(one_line(column, limit=20)), justify="left" if is_text else "right")
    return table
