"""The command that shows all the others at work."""

from typing import Annotated

import typer

from sightline.cli.session import Debug, WorkspaceOption


def add_commands(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("demo")(demo)


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller boards: about a minute instead of three.")
    ] = False,
    workspace: WorkspaceOption = None,
    debug: Debug = False,
) -> None:
    """Do the main job on synthetic circuit boards: make them, look, train, register, detect, report."""
    from sightline.demo import run_demo
    from sightline.workspace import Workspace

    run_demo(Workspace.find(workspace).root, quick=quick)
