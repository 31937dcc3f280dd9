"""The commands, one function each."""

import sys
from typing import Annotated

import typer

from sightline.cli import app as app_command
from sightline.cli import data, demo, detect, export, models, report, runs, train
from sightline.cli.session import leaving_stuck_threads, telling_errors

app = typer.Typer(
    name="sightline",
    help="Find objects in images at any scale.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
data.add_commands(app)
train.add_commands(app)
runs.add_commands(app)
export.add_commands(app)
models.add_commands(app)
detect.add_commands(app)
report.add_commands(app)
app_command.add_commands(app)
demo.add_commands(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from sightline import __version__

        typer.echo(f"sightline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    with leaving_stuck_threads(), telling_errors(debug="--debug" in sys.argv):
        app()
