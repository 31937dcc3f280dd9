"""The command that writes pages."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sightline.cli.session import Debug, Json, Session, WorkspaceOption


def add_commands(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("report")(report)


def report(
    name: Annotated[str, typer.Argument(help="A detection job, a run or a dataset.", show_default=False)],
    to: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Where to.", show_default="reports/ in the workspace")
    ] = None,
    kind: Annotated[
        Literal["job", "run", "dataset"] | None, typer.Option(help="If several have the name.", show_default=False)
    ] = None,
    pictures: Annotated[int, typer.Option(min=0, max=200, help="Images of a job to show.")] = 12,
    workspace: WorkspaceOption = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a job, a run or a dataset as one HTML file, to look at or to send."""
    from sightline import report_api

    session = Session(workspace, json, debug)
    path = report_api.write_report(name, to, kind=kind, pictures=pictures, workspace=workspace)
    session.finish({"path": str(path)}, lambda: session.say(f"written to {path}: open it in a browser, or send it"))
