"""What every command shares: its options, its console, its progress line, and how its errors are told."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from sightline.config import Config

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file of settings.", show_default=False)]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
WorkspaceOption = Annotated[
    Path | None,
    typer.Option("--workspace", "-w", help="Where everything is kept.", show_default="./sightline-workspace"),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="MLflow server or database.",
        show_default="MLFLOW_TRACKING_URI, else SQLite in the workspace",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_WORKER_THREADS = ("sightline-detect", "sightline-decode", "sightline-network", "sightline-versions")
"""What the names of the threads of `detection/pool.py`, `detection/worker.py` and `detection/sources` begin with."""


@dataclass
class Session:
    """One run of a command."""

    workspace: Path | None = None
    json: bool = False
    debug: bool = False
    config_file: Path | None = None
    sets: list[str] = field(default_factory=list)

    @cached_property
    def console(self) -> "Console":
        """Where people read: standard output, or standard error when that is JSON."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else 160
        return Console(stderr=self.json, highlight=False, width=width, quiet=self.is_follower)

    @property
    def is_follower(self) -> bool:
        """Whether torchrun started this process as one of the others; rank 0 speaks for all."""
        return int(os.environ.get("RANK", "0")) > 0 and int(os.environ.get("WORLD_SIZE", "1")) > 1

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer a question."""
        return sys.stdin.isatty() and not self.json

    def config(self, **flags: dict[str, Any]) -> "Config":
        """The settings: defaults, file, --set, then the command's own flags."""
        from sightline.config import load_config

        return load_config(self.config_file, sets=tuple(self.sets), flags=flags)

    def say(self, text: str) -> None:
        """Print a line for people; names in it are shown as they are."""
        from rich.markup import escape

        self.console.print(escape(text))

    def finish(self, result: Any, show: Callable[[], None]) -> None:
        """Give the result: as JSON to machines, or shown to people."""
        if self.json and not self.is_follower:
            sys.stdout.write(json.dumps(result, indent=2, default=str) + "\n")
        else:
            show()

    @contextmanager
    def progress(self, verb: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
        """One live line with count and speed; nothing where nobody watches."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True, disable=not self.console.is_terminal
        ) as bar:
            task = bar.add_task(verb, total=total, rate="")

            def update(done: int, rejected: int = 0) -> None:
                elapsed = bar.tasks[0].elapsed or 0
                rate = f"{done / elapsed:,.0f} images/s" if elapsed > 0.5 else ""
                bar.update(task, completed=done, rate=rate + (f", {rejected} rejected" if rejected else ""))

            yield update


def local_time(moment: str) -> str:
    """A moment in ISO 8601, as a clock here shows it."""
    from datetime import datetime

    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")


@contextmanager
def telling_errors(debug: bool) -> Iterator[None]:
    """Turn errors into one sentence and an exit code: those of `errors.py`, and 1 for our own fault."""
    from sightline.errors import SightlineError
    from sightline.workspace import REFUSALS

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        yield
    except SightlineError as error:
        _fail(str(error), error.exit_code, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in REFUSALS:
            _fail_unexpectedly(error, debug)
        where = repr(error.filename) if error.filename else "a file"
        _fail(f"{where} cannot be used: {error.strerror}. Check its permissions and the free space", 3, debug)
    except MemoryError:
        _fail("out of memory: use fewer workers (--set ingest.workers=1) or a larger machine", 3, debug)
    except Exception as error:
        _fail_unexpectedly(error, debug)


@contextmanager
def leaving_stuck_threads() -> Iterator[None]:
    """End the process at once if a thread of a worker still reads or computes: Python would wait for it for ever."""
    try:
        yield
    except BaseException as error:
        if not any(thread.name.startswith(_WORKER_THREADS) for thread in threading.enumerate()):
            raise
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], int]]:
    """SIGTERM and Ctrl-C ask the command to stop in order; gives the number of the signal that came, or 0."""
    came = [0]
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in kept:
        signal.signal(number, lambda number, _frame: came.__setitem__(0, number))
    try:
        yield lambda: came[0]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: Any) -> NoReturn:
    """End as shells expect, 128 + signal, through every clean-up on the way out."""
    raise SystemExit(128 + number)


def _fail_unexpectedly(error: Exception, debug: bool) -> NoReturn:
    text = " ".join(str(error).split()) or "no message"
    _fail(f"unexpected {type(error).__name__}: {text}. This is a bug; --debug shows where", 1, debug)


def _fail(message: str, code: int, debug: bool) -> NoReturn:
    if debug:
        raise
    from rich.console import Console
    from rich.markup import escape

    from sightline.secrets import redact

    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(redact(message))}")
    raise SystemExit(code) from None
