"""The demo: its commands, and what it does when one of them fails or somebody stops it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from sightline.cli.main import app
from sightline.config import load_config
from sightline.demo import Step, clear, command_line, run_demo, run_steps, steps
from sightline.errors import ExistsError, SightlineError

BOARDS = Path(__file__).parents[3] / "bench/boards.toml"
EVERY = [
    pytest.param(command, id=f"{'quick' if quick else 'whole'}-{number}-{command[0]}")
    for quick in (False, True)
    for number, command in enumerate(c for step in steps(Path("w"), quick=quick) for c in step.commands)
]


def parsed(command: tuple[str, ...]) -> dict[str, Any]:
    """The parameters that the command line makes of a command, which is not run."""
    group: Any = typer.main.get_command(app)
    with group.make_context("sightline", list(command)) as context:
        name, found, rest = group.resolve_command(context, list(command))
        return dict(found.make_context(name, rest, parent=context).params)


def command_of(name: str, *, quick: bool) -> tuple[str, ...]:
    return next(c for step in steps(Path("w"), quick=quick) for c in step.commands if c[0] == name)


def put(file: Path, text: str = "mine") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("command", EVERY)
def test_every_command_is_understood(command: tuple[str, ...]) -> None:
    load_config(sets=tuple(parsed(command).get("sets", ())))


def test_unknown_options_are_noticed_here() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed(("train", "boards", "--nonsense"))


def test_it_trains_what_the_benchmark_trains() -> None:
    given = parsed(command_of("train", quick=False))
    flags = {key: given[key] for key in ("model", "epochs", "batch", "lr", "size")}
    assert load_config(sets=tuple(given["sets"]), flags={"train": flags}) == load_config(BOARDS)


@pytest.mark.parametrize("quick", [False, True])
def test_forms(tmp_path: Path, quick: bool) -> None:
    named = {c[0] for step in steps(tmp_path, quick=quick) for c in step.commands}
    assert {"synth", "inspect", "train", "evaluate", "register", "detect", "query", "report"} <= named
    assert ("--verify" in command_of("train", quick=quick)) is not quick


def test_forms_share_no_dataset_and_no_model() -> None:
    """The quick model is worse, so the gate would refuse it the alias that the other has."""
    for name, option in (("synth", "to"), ("register", "name")):
        whole, quick = (parsed(command_of(name, quick=quick))[option] for quick in (False, True))
        assert whole != quick


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("detect", "--where", "split='test'"), "sightline detect --where \"split='test'\""),
        (("query", "select $1"), "sightline query 'select $1'"),
        (("datasets",), "sightline datasets"),
    ],
)
def test_command_line(command: tuple[str, ...], line: str) -> None:
    assert command_line(command) == line


def test_the_first_failure_ends_it(tmp_path: Path) -> None:
    told: list[str] = []
    parts = [Step("One", (("datasets",), ("inspect", "no thing"), ("runs",))), Step("Two", (("models",),))]
    with pytest.raises(SightlineError, match=r"`sightline inspect 'no thing'` ended with exit code 2"):
        run_steps(parts, tmp_path, say=told.append)
    assert [line for line in told if line.startswith(("==>", "$"))] == [
        "==> One",
        "$ sightline datasets",
        "$ sightline inspect 'no thing'",
    ]
    assert any("'no thing' is not usable" in line for line in told)


def test_commands_get_the_workspace(tmp_path: Path) -> None:
    run_steps([Step("One", (("synth", "shapes", "--images", "3"),))], tmp_path / "a b", say=lambda line: None)
    assert [place.name for place in tmp_path.iterdir()] == ["a b"]
    assert (tmp_path / "a b/datasets/shapes").is_dir()


def test_clear_removes_only_what_a_demo_made(tmp_path: Path) -> None:
    clear(tmp_path)
    gone = [put(tmp_path / "demo/found.html"), put(tmp_path / "detections/demo/job.json")]
    kept = [put(tmp_path / name) for name in ("detections/mine/job.json", "demos/x", "runs/demo/x", "datasets/demo/x")]
    clear(tmp_path)
    assert not any(file.exists() for file in gone)
    assert not (tmp_path / "detections/demo").exists()
    assert all(file.read_text() == "mine" for file in kept)


@pytest.mark.parametrize("place", ["demo", "detections/demo"])
def test_clear_refuses_what_no_demo_made(tmp_path: Path, place: str) -> None:
    mine = put(tmp_path / place / "x")
    with pytest.raises(ExistsError, match="was not made by the demo"):
        run_demo(tmp_path, say=lambda line: None)
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


@pytest.mark.parametrize("link", ["detections", "detections/demo"])
def test_clear_follows_no_link_out(tmp_path: Path, link: str) -> None:
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    clear(root)
    mine = put(outside / "demo/x")
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(outside if link == "detections" else outside / "demo")
    with pytest.raises(ExistsError):
        clear(root)
    assert mine.read_text() == "mine"


def test_who_stops_listening_ends_the_command(tmp_path: Path) -> None:
    """It comes back at all only if the training, which would go on for days, has ended."""
    training = ("train", "shapes", "--size", "64", "--set", "train.threads=1", "--no-track", "--epochs", "1000000")
    told: list[str] = []

    def stop(line: str) -> None:
        told.append(line)
        if line.startswith("validation"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps([Step("One", (("synth", "shapes", "--images", "20"), training))], tmp_path, say=stop)
    assert told[-1].startswith("validation")


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_demo_stops_its_command(tmp_path: Path, how: signal.Signals, code: int) -> None:
    """Its output ends only when all who could write to it are gone."""
    command = [sys.executable, "-m", "sightline", "demo", "--workspace", "w"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("$ sightline synth"):
            assert process.poll() is None
        process.send_signal(how)
        assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == code
    assert not (tmp_path / "w/datasets/boards").exists()


@pytest.mark.slow
def test_quick_demo_twice(tmp_path: Path) -> None:
    root = tmp_path / "w"
    for _ in range(2):
        told: list[str] = []
        run_demo(root, quick=True, say=told.append)
        assert (root / "demo/found.html").stat().st_size > 10_000
        assert any((root / "detections/demo/images").glob("*.parquet"))
        assert any(line.startswith("mAP ") and map50(line) > 0.2 for line in told)
        assert any(line.startswith(f"The report is {root / 'demo/found.html'}: open it in a browser.") for line in told)


def map50(line: str) -> float:
    words = line.split()
    return float(words[words.index("mAP50") + 1])
