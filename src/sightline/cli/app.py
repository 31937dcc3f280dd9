"""The command that serves the app."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.session import Debug, Session, WorkspaceOption


def add_commands(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("app")(serve_app)


def serve_app(
    address: Annotated[str, typer.Option(help="To listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="To listen on.", show_default="8501 or the next free one")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="That every request must bring.", show_default="SIGHTLINE_APP_TOKEN, else a new one"),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user of this machine in; on loopback only.")
    ] = False,
    browse: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="Let visitors open folders of images below this one.", show_default=False),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    workspace: WorkspaceOption = None,
    debug: Debug = False,
) -> None:
    """Look at images, detections, models, runs and datasets in a browser.

    Open the printed address: it contains the token. The browser keeps it in a cookie.
    """
    from sightline.app.server import ServeOptions, serve
    from sightline.workspace import Workspace

    session = Session(workspace, False, debug)
    options = ServeOptions(address, port, token, no_token, browse, browser)
    serve(Workspace.find(workspace), options, say=session.say)
