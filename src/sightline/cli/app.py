"""The command that serves the app."""

from typing import Annotated

import typer

from sightline.cli.session import Debug, Session, WorkspaceOption


def add_commands(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("app")(serve_app)


def serve_app(
    address: Annotated[str, typer.Option(help="To listen on; one that others can reach needs --token.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="To listen on.", show_default="8501 or the next free one")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What every request must bring; 'new' makes one up. SIGHTLINE_APP_TOKEN does the same.",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    workspace: WorkspaceOption = None,
    debug: Debug = False,
) -> None:
    """Look at images, detections, models, runs and datasets in a browser."""
    from sightline.app.server import serve
    from sightline.workspace import Workspace

    session = Session(workspace, False, debug)
    serve(Workspace.find(workspace), address=address, port=port, token=token, open_browser=browser, say=session.say)
