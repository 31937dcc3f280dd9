"""The command about tracked runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.session import ConfigFile, Debug, Json, Session, Sets, TrackingUri, WorkspaceOption, local_time

if TYPE_CHECKING:
    from sightline.tracking.comparison import Comparison, Row
    from sightline.tracking.listing import TrackedRun

_COLORS = {"running": "cyan", "finished": "green", "failed": "red", "stopped": "yellow", "unfinished": "yellow"}


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("runs")(runs)


def runs(
    compare: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[compare NAME NAME …]",
            help="Put these runs side by side; without it, list all.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="List so many of the newest.", min=1)] = 50,
    tracking_uri: TrackingUri = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List training runs, or compare some: settings, results, machines."""
    from dataclasses import asdict

    from sightline import api

    session = Session(workspace, json, debug, config, sets)
    settings = session.config(tracking={"uri": tracking_uri})
    if not compare:
        found = api.list_runs(workspace=workspace, config=settings, limit=limit)
        session.finish([asdict(run) for run in found], lambda: _show_list(session, found))
        return
    if compare[0] != "compare":
        raise typer.BadParameter(f"{compare[0]!r} is not known here: {_suggestion(compare)}")
    comparison = api.compare_runs(*compare[1:], workspace=workspace, config=settings)
    session.finish(asdict(comparison), lambda: _show_comparison(session, comparison))


def _suggestion(names: list[str]) -> str:
    if len(names) > 1:
        return f"`sightline runs compare {' '.join(names)}` compares these runs"
    return f"`sightline report {names[0]}` writes a page about a run, `sightline runs compare NAME NAME` compares two"


def _show_list(session: Session, found: "list[TrackedRun]") -> None:
    from rich.markup import escape
    from rich.table import Table

    if not found:
        session.say("no runs yet: train a model with `sightline train DATASET`; `sightline datasets` lists datasets")
        return
    table = Table(box=None)
    left = ("name", "status", "model", "dataset", "started")
    for column in ("name", "status", "model", "dataset", "epochs", "best score", "images/s", "workers", "started"):
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    for run in found:
        table.add_row(
            escape(run.name),
            f"[{_COLORS[run.status]}]{run.status}[/]",
            escape(run.model),
            escape(run.dataset),
            f"{run.epochs[0]}/{run.epochs[1]}",
            "" if run.score is None else f"{run.score:.3f}",
            "" if run.images_per_s is None else f"{run.images_per_s:.1f}",
            str(run.workers),
            local_time(run.started),
        )
    session.console.print(table)
    if len(found) > 1:
        session.say("side by side: sightline runs compare NAME NAME")


def _show_comparison(session: Session, comparison: "Comparison") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    table.add_column("")
    for run in comparison.runs:
        table.add_column(f"{escape(run.name)}\n{local_time(run.started)}", justify="right", overflow="fold")
    table.add_row("status", *(run.status for run in comparison.runs))
    for title, rows in (
        ("settings that differ", comparison.settings),
        ("results", comparison.results),
        ("machine, where it differs", comparison.machine),
    ):
        table.add_section()
        table.add_row(f"[bold]{title}[/]", *("" if rows else "nothing" for _ in comparison.runs))
        for name, row in rows.items():
            table.add_row(escape(name), *map(escape, _texts(row)))
    session.console.print(table)


def _texts(row: "Row") -> list[str]:
    return ["-" if value is None else f"{value:,.4g}" if isinstance(value, float) else value for value in row]
