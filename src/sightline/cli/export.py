"""The command that writes a model for other programs: export."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sightline.cli.session import ConfigFile, Debug, Json, Session, Sets, WorkspaceOption


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("export")(export)


def export(
    model: Annotated[str, typer.Argument(help="Name of a run, or the path of a model.", show_default=False)],
    to: Annotated[Literal["onnx", "openvino"], typer.Option("--to", help="Form to write.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="A new directory.", show_default="in `exports` of the workspace")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="In 8-bit integers; needs --calibrate.")] = False,
    calibrate: Annotated[
        str | None, typer.Option(help="Dataset whose images calibrate the integers.", show_default=False)
    ] = None,
    workspace: WorkspaceOption = None,
    config: ConfigFile = None,
    sets: Sets = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model as ONNX or OpenVINO files, with a JSON that says what they are."""
    from sightline import model_api

    session = Session(workspace, json, debug, config, sets)
    directory = model_api.export_model(
        model,
        to=to,
        output=output,
        int8=int8,
        calibrate=calibrate,
        workspace=workspace,
        config=session.config(),
        on_note=session.say,
    )
    files = sorted(file.name for file in directory.iterdir())
    result = {"directory": str(directory), "form": to, "int8": int8, "files": files}
    session.finish(result, lambda: session.say(f"written to {directory}: {', '.join(files)}"))
