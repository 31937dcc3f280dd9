"""The model card: a page of Markdown that says what a model is, how good it is, and what it has learned from.

Names in it come from other people's data. They are written as character references, so that none of them can begin a
heading, a link, a cell of a table or a tag, whatever shows the page.
"""

from collections.abc import Sequence

from sightline.models.info import Figures, ModelInfo
from sightline.report.name import one_line

_MAX_NAME = 80
_FIGURES = {
    "map": "mAP (IoU 0.5 to 0.95)",
    "map50": "mAP50",
    "f1": "F1 at the score threshold",
    "accuracy": "accuracy",
}
CLASS_COLUMNS = {
    "count": "in validation",
    "ap": "AP",
    "ap50": "AP50",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
}


def model_card(info: ModelInfo, pictures: Sequence[str] = ()) -> str:
    """The card of a model.

    Args:
        pictures: Names of files beside it that show what the model finds.
    """
    parts = [_head(info), _figures(info), _classes(info), _pictures(pictures), _use(info), _origin(info)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    r"""A text that is shown as it is, on one line, by anything that shows Markdown or HTML.

    >>> plain("<b>[x](y)")
    '&#60;b&#62;&#91;x&#93;&#40;y&#41;'
    """
    shown = one_line(text, limit=_MAX_NAME)
    return "".join(letter if letter.isalnum() or letter == " " else f"&#{ord(letter)};" for letter in shown).strip()


def _head(info: ModelInfo) -> str:
    what = "finds" if info.task == "detection" else "tells apart"
    learned = f", trained on {plain(info.dataset.name)}" if info.dataset else ""
    classes = ", ".join(plain(name) for name in info.classes[:12]) + (", …" if len(info.classes) > 12 else "")
    canvas = "a square" if info.preprocessing.square else "what the network needs"
    return (
        f"# {plain(info.model)}{learned}\n\n"
        f"A model of Sightline that {what} {len(info.classes)} classes: {classes}.\n"
        f"Images are fitted into {info.size} x {info.size} pixels and padded to {canvas}."
    )


def _figures(info: ModelInfo) -> str:
    rows = [(figure_name(name), f"{value:.3f}") for name, value in info.metrics.items() if figure_name(name)]
    if info.score_threshold is not None:
        rows.append(("score threshold, the best for F1", f"{info.score_threshold:.3f}"))
    table = _table(["figure", "value"], rows)
    return f"## On its validation images\n\n{table}" if rows else ""


def figure_name(figure: str) -> str:
    """What a figure is called; mAP at an overlap of the user's choice has that in its name."""
    if figure in _FIGURES:
        return _FIGURES[figure]
    return f"mAP at IoU 0.{figure[3:]}" if figure.startswith("map") and figure[3:].isdigit() else ""


def _classes(info: ModelInfo) -> str:
    columns = [name for name in CLASS_COLUMNS if any(name in row for row in info.per_class)]
    if not columns:
        return ""
    rows = [
        (plain(name), *(_cell(figures, column) for column in columns))
        for name, figures in zip(info.classes, info.per_class, strict=False)
    ]
    return "## By class\n\n" + _table(["class", *(CLASS_COLUMNS[column] for column in columns)], rows)


def _cell(figures: Figures, column: str) -> str:
    if column not in figures:
        return "-"
    return f"{figures[column]:,.0f}" if column == "count" else f"{figures[column]:.3f}"


def _pictures(names: Sequence[str]) -> str:
    shown = "\n\n".join(f"![truth on the left, what the model found on the right]({name})" for name in names)
    return (
        f"## What it finds\n\nLeft the truth, right what the model found, in validation images.\n\n{shown}"
        if names
        else ""
    )


def _use(info: ModelInfo) -> str:
    field = "boxes" if info.task == "detection" else "score"
    return (
        "## Use\n\n```python\nimport sightline\n\n"
        'model = sightline.load_model("path/to/this/directory")\n'
        'for found in model.predict(["image.jpg"]):\n'
        f"    print(found.{field}, found.{'names' if info.task == 'detection' else 'name'})\n```"
    )


def _origin(info: ModelInfo) -> str:
    rows = [("architecture", plain(info.model)), ("licence of the architecture", plain(info.licence))]
    if info.dataset:
        rows += [("dataset", plain(info.dataset.name)), ("its content hash", plain(info.dataset.content_hash))]
    if info.run:
        rows += [("run", plain(info.run.name)), ("run in MLflow", plain(info.run.run_id or "-"))]
    rows += [(plain(name), plain(text)) for name, text in info.versions.items()]
    return "## Where it comes from\n\n" + _table(["", ""], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:" for _ in header[1:]]], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
