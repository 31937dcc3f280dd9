"""How registered models and their figures look in the terminal."""

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from sightline.cli.session import Session, local_time
from sightline.report.name import one_line

if TYPE_CHECKING:
    from sightline.models.bundle import Bundle
    from sightline.registering.gate import Promotion
    from sightline.registering.scoring import ModelComparison
    from sightline.tracking.registry import ModelVersion

_FIGURES = {
    "map": "mAP",
    "map50": "mAP50",
    "map75": "mAP75",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "accuracy": "accuracy",
    "top5": "top 5",
    "macro_f1": "mean F1",
    "images_per_s": "images/s",
}


def show_list(session: Session, found: "list[ModelVersion]") -> None:
    """One row a version."""
    if not found:
        session.say("no models yet: keep one with `sightline register RUN --name NAME`; `sightline runs` lists runs")
        return
    table = Table(box=None)
    for column in ("model", "aliases", "kind", "dataset", "score", "run", "bundle", "registered"):
        table.add_column(column, justify="right" if column == "score" else "left", no_wrap=True)
    for version in found:
        facts = version.facts
        table.add_row(
            _cell(f"{version.name}/{version.version}"),
            _cell(" ".join(f"@{alias}" for alias in version.aliases)),
            _cell(facts.get("model", "")),
            _cell(facts.get("dataset", "")),
            _score(facts.get("score", "")),
            _cell(facts.get("run", "")),
            _cell((version.bundle or "not a bundle")[:12]),
            local_time(version.created),
        )
    session.console.print(table)


def show_bundle(session: Session, bundle: "Bundle") -> None:
    """Facts, then figures by class."""
    info = bundle.info
    rows = [("model", info.model), ("task", info.task), ("image size", str(info.size)), ("bundle", bundle.hash)]
    if info.score_threshold is not None:
        rows.append(("score threshold", f"{info.score_threshold:.3f}"))
    rows += [(_FIGURES[name], f"{value:.4f}") for name, value in info.metrics.items() if name in _FIGURES]
    if info.dataset:
        rows.append(("dataset", f"{info.dataset.name} ({info.dataset.content_hash[:12]})"))
    if info.run:
        rows.append(("run", f"{info.run.name} ({info.run.run_id or 'not tracked'})"))
    rows += [("licence", info.licence), ("made with", ", ".join(f"{k} {v}" for k, v in info.versions.items()))]
    rows.append(("files", str(bundle.path)))
    table = Table(box=None, show_header=False)
    for name, text in rows:
        table.add_row(f"[dim]{name}[/]", _cell(text, limit=None))
    session.console.print(table)
    session.console.print(_classes(bundle))


def show_comparison(session: Session, found: "ModelComparison") -> None:
    """One column a model: means, then each class; the best of a row is bold."""
    title = f"{found.num_images:,} images, split {escape(found.split)} of {escape(found.dataset)}"
    table = Table(box=None, title=title, title_justify="left")
    table.add_column("")
    for model in found.models:
        table.add_column(f"{_cell(model.label)}\n[dim]{escape(model.model)} {model.bundle[:12]}[/]", justify="right")
    for name in found.models[0].figures:
        digits = 1 if name == "images_per_s" else 4
        table.add_row(_FIGURES[name], *_figures([model.figures[name] for model in found.models], digits))
    table.add_section()
    kind = "AP" if found.models[0].main == "map" else "F1"
    table.add_row(f"[bold]{kind} by class[/]", *("" for _ in found.models))
    for name in found.models[0].per_class:
        table.add_row(_cell(name), *_figures([model.per_class[name] for model in found.models], 4))
    session.console.print(table)
    session.say("precision, recall and F1 at each model's own threshold; images/s of this evaluation, reading included")


def show_promotion(session: Session, found: "Promotion") -> None:
    """The figures that let it through, and who has the alias now."""
    if found.compared:
        show_comparison(session, found.compared)
    if found.before and found.before.version == found.version.version:
        session.say(f"{found.version.label} had the alias already")
        return
    instead = f" instead of {found.before.name}/{found.before.version}" if found.before else ", which nobody had"
    session.say(f"{found.version.name}/{found.version.version} is now @{found.alias}{instead}")


def _classes(bundle: "Bundle") -> Table:
    columns = [name for name in ("count", "ap", "ap50", "precision", "recall", "f1") if _known(bundle, name)]
    titles = {"count": "in validation", "ap": "AP", "ap50": "AP50", **_FIGURES}
    table = Table(box=None, title="classes", title_justify="left")
    for title in ("class", *(titles[name] for name in columns)):
        table.add_column(title, justify="left" if title == "class" else "right")
    rows = bundle.info.per_class or ({},) * len(bundle.info.classes)
    for name, row in zip(bundle.info.classes, rows, strict=False):
        table.add_row(_cell(name), *(_figure(row.get(key), count=key == "count") for key in columns))
    return table


def _figure(value: float | None, *, count: bool) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if count else f"{value:.3f}"


def _known(bundle: "Bundle", figure: str) -> bool:
    return any(figure in row for row in bundle.info.per_class)


def _figures(values: "list[float | None]", digits: int) -> list[str]:
    known = [value for value in values if value is not None]
    texts = ["-" if value is None else f"{value:.{digits}f}" for value in values]
    best = f"{max(known):.{digits}f}" if len(set(known)) > 1 else ""
    return [f"[bold]{text}[/]" if text == best else text for text in texts]


def _score(text: str) -> str:
    """Another program may have written anything there."""
    try:
        return f"{float(text):.3f}"
    except ValueError:
        return _cell(text)


def _cell(text: str, *, limit: int | None = 40) -> str:
    return escape(one_line(text, limit=limit))
