"""The main job from nothing, as commands that a user could type: make images, look, train, keep, detect, report.

`sightline demo` runs it; `steps` is what it runs.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import ExistsError, SightlineError
from sightline.workspace import Workspace

Say = Callable[[str], None]

_NAME = "demo"
_MARK = "made-by-sightline-demo.txt"
"""In the demo's folder: that it is the demo's to remove."""
_PATIENCE_S = 20.0
_FOUND = (
    "select label, count(*) as boxes, round(avg(score), 2) as mean_score from detections group by label order by 2 desc"
)


@dataclass(frozen=True)
class Step:
    """A part of the demo.

    Attributes:
        title: What it shows.
        commands: The arguments of `sightline`, command by command.
    """

    title: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Form:
    """What differs between the whole demo and the quick one."""

    boards: str
    """The name of dataset and model. Each form has its own: a model is refused where a better one has its alias."""
    images: int
    size: int
    training: tuple[str, ...]
    about_training: str


_WHOLE = _Form(
    boards="boards",
    images=2000,
    size=320,
    training=("--epochs", "2", "--lr", "0.003", "--set", "train.ema=0.99", "--workers", "2", "--verify"),
    about_training="on two workers, which end with the same weights: about two minutes on two cores",
)
_QUICK = _Form(
    boards="quick-boards",
    images=300,
    size=160,
    training=("--epochs", "5", "--lr", "0.004", "--set", "train.ema=0.98", "--set", "train.threads=1"),
    about_training="in this process, on small boards: about half a minute",
)


def steps(root: Path, *, quick: bool) -> tuple[Step, ...]:
    """What the demo does.

    Args:
        root: The workspace, which the commands find by SIGHTLINE_HOME.
        quick: Fewer and smaller boards, one worker, and no command that only shows more of the same.
    """
    form = _QUICK if quick else _WHOLE
    boards, folder = form.boards, root / _NAME
    detect = ("detect", boards, boards, "--where", "split='test'", "--to", _NAME)
    runs, models, again = ((), (), ()) if quick else ((("runs",),), (("models",),), (detect,))
    return (
        Step(
            "Synthetic circuit boards with six kinds of defects (nothing is downloaded)",
            (_synth(form),),
        ),
        Step(
            "The same images as files of the formats people have, and back",
            (
                ("export-dataset", boards, "--format", "coco", "--to", str(folder / "coco")),
                ("ingest", str(folder / "coco"), "--to", f"{boards}-from-coco", "--replace"),
                ("datasets",),
            ),
        ),
        Step("Look at it", (("inspect", boards, "--html", str(folder / "boards.html")),)),
        Step(
            f"Train a detector from scratch {form.about_training}",
            (_train(form), ("evaluate", _NAME, boards, "--split", "test"), *runs),
        ),
        Step(
            "Keep its model: checked byte by byte, found by name, never a pickle",
            (("register", _NAME, "--name", boards, "--alias", "champion"), *models),
        ),
        Step(
            "Run it over images it has not seen: every image exactly once, however often this is typed",
            ((*detect, "--save-images", "4"), *again, ("query", _FOUND, "--job", _NAME)),
        ),
        Step(
            "What was found as one page, to look at or to send",
            (("report", _NAME, "--kind", "job", "--to", str(_report(root))),),
        ),
    )


def run_demo(root: Path, *, quick: bool = False, say: Say | None = None) -> None:
    """Run all steps in a workspace; what an earlier demo left there is replaced.

    Args:
        root: The workspace.
        quick: See `steps`.
        say: Is told every line. None: all is written to standard output, and the commands see the terminal.

    Raises:
        ExistsError: A folder is in the way that no demo made.
        SightlineError: A command failed.

    Example:
        >>> run_demo(Path("sightline-workspace"), quick=True)  # doctest: +SKIP
    """
    tell = say or _write
    clear(root)
    tell(f"Everything is kept in {root}, which SIGHTLINE_HOME or --workspace can change")
    run_steps(steps(root, quick=quick), root, say=say)
    for line in _ending(root):
        tell(line)


def run_steps(parts: Iterable[Step], root: Path, *, say: Say | None = None) -> None:
    """Run commands one after the other, up to the first that fails; see `run_demo`."""
    tell = say or _write
    for step in parts:
        tell("")
        tell(f"==> {step.title}")
        for command in step.commands:
            line = f"$ {command_line(command)}"
            tell("")
            tell(f"\033[1m{line}\033[0m" if say is None and sys.stdout.isatty() else line)
            _run(command, root, say)


def clear(root: Path) -> None:
    """Make an empty `demo` in the workspace, and remove what an earlier demo detected; touch nothing else.

    Raises:
        ExistsError: There is such a folder, but no demo made it, or it is not really inside the workspace.
    """
    folder, detections = root / _NAME, Workspace(root).detections / _NAME
    is_ours = (folder / _MARK).is_file()
    there = [place for place in (detections, folder) if os.path.lexists(place)]
    for place in there:
        is_folder = place.is_dir() and not place.is_symlink()
        if not (is_ours and is_folder and place.resolve().is_relative_to(root.resolve())):
            raise ExistsError(
                f"{str(place)!r} was not made by the demo, which would replace it: move it away, or take another "
                "--workspace"
            )
    for place in there:
        shutil.rmtree(place)
    folder.mkdir(parents=True)
    (folder / _MARK).write_text(f"The next demo removes this folder and {detections}.\n", "utf-8")


def command_line(command: Iterable[str]) -> str:
    """A command as people type it."""
    return " ".join(("sightline", *(_quoted(part) for part in command)))


def _synth(form: _Form) -> tuple[str, ...]:
    numbers = ("--images", str(form.images), "--size", str(form.size), "--seed", "1")
    return ("synth", "boards", *numbers, "--to", form.boards, "--replace")


def _train(form: _Form) -> tuple[str, ...]:
    model = ("--model", "nano", "--size", str(form.size), "--batch", "4")
    turned = ("--set", "augment.hflip=0.5", "--set", "augment.vflip=0.5", "--set", "augment.rotate90=0.75")
    return ("train", form.boards, *model, *form.training, *turned, "--name", _NAME, "--fresh")


def _report(root: Path) -> Path:
    return root / _NAME / "found.html"


def _ending(root: Path) -> tuple[str, ...]:
    return (
        "",
        f"The report is {_report(root)}: open it in a browser. `sightline app` prints an address that shows all of it.",
        "",
        "Next, on images of your own:",
        "  sightline ingest DIR --to NAME                  # annotated images, in any usual format",
        "  sightline train NAME --register NAME            # then: sightline evaluate, sightline models",
        "  sightline detect NAME FOLDER                    # then: sightline query, sightline report",
    )


def _quoted(part: str) -> str:
    is_plain_in_quotes = "'" in part and not set(part) & set('"$`\\!')
    return f'"{part}"' if is_plain_in_quotes else shlex.quote(part)


def _run(command: tuple[str, ...], root: Path, say: Say | None) -> None:
    with _child(command, root, is_heard=say is not None) as child:
        if say and child.stdout:
            for line in child.stdout:
                say(line.rstrip("\n"))
        code = child.wait()
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise SightlineError(f"the demo stops: `{command_line(command)}` ended with {how}; what it said is above")


@contextmanager
def _child(command: tuple[str, ...], root: Path, *, is_heard: bool) -> Iterator["subprocess.Popen[str]"]:
    """A command while it runs; whoever leaves early ends it."""
    environment = {**os.environ, "SIGHTLINE_HOME": str(root)} | ({"PYTHONUNBUFFERED": "1"} if is_heard else {})
    with ExitStack() as stack:
        with _signals_wait():
            child = subprocess.Popen(
                [sys.executable, "-m", "sightline", *command],
                stdin=subprocess.DEVNULL if is_heard else None,
                stdout=subprocess.PIPE if is_heard else None,
                stderr=subprocess.STDOUT if is_heard else None,
                env=environment,
                encoding="utf-8",
                errors="replace",
            )
            stack.enter_context(child)
            stack.callback(_end, child)
        yield child


@contextmanager
def _signals_wait() -> Iterator[None]:
    """A signal that comes meanwhile is dealt with afterwards: a child that is being started would be lost to us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in kept:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _end(child: "subprocess.Popen[str]") -> None:
    """Ask it to stop in order, then kill it; a second signal to us kills it at once."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_PATIENCE_S)
    finally:
        child.kill()


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # What a command writes comes after it.
