"""The command as a person or a script meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def sightline(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    done = sightline("synth", "shapes", "--images", "30", "--seed", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_images"] == 30
    return tmp_path


def test_the_loop(place: Path) -> None:
    assert "shapes" in sightline("datasets", cwd=place).stdout
    done = sightline("export-dataset", "shapes", "--format", "yolo", "--to", "out", cwd=place)
    assert "30 images written" in done.stdout
    done = sightline("ingest", "out", "--to", "again", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "read as yolo: class names in data.yaml" in done.stdout
    assert "again: 30 images" in done.stdout
    done = sightline("inspect", "again", "--html", "page.html", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout
    assert (place / "page.html").stat().st_size > 10_000


def test_json_is_all_that_is_printed(place: Path) -> None:
    for arguments in (["datasets"], ["inspect", "shapes"], ["synth", "shapes", "--to", "more", "--images", "3"]):
        done = sightline(*arguments, "--json", cwd=place)
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)


def test_workspace_by_option_and_environment(place: Path) -> None:
    elsewhere = place / "else where"
    assert sightline("synth", "shapes", "--images", "2", "-w", str(elsewhere), cwd=place).returncode == 0
    found = json.loads(sightline("datasets", "--json", cwd=place, SIGHTLINE_HOME=str(elsewhere)).stdout)
    assert [info["num_images"] for info in found] == [2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inspect", "nothing"], 3, ["no dataset", "sightline datasets"]),
        (["ingest", "nowhere", "--to", "x"], 3, ["'nowhere' does not exist"]),
        (["ingest", ".", "--to", "bad name"], 2, ["'bad name' is not usable"]),
        (["ingest", ".", "--to", "x", "--set", "ingest.verfy=full"], 2, ["'ingest.verfy' does not exist", "verify"]),
        (["ingest", ".", "--to", "x", "--format", "vok"], 2, ["voc"]),
        (["ingest", ".", "--to", "x", "--columns", "image"], 2, ["image=IMG"]),
        (["ingest", ".", "--to", "x", "--split", "train=2"], 2, ["add up to 1"]),
        (["ingest", "http://example.com/x", "--to", "x"], 3, ["http:// is not opened"]),
        (["synth", "shapes"], 3, ["exists", "--replace"]),
        (["synth", "shapes", "--to", "y", "--images", "0"], 2, ["--images must be at least 1"]),
        (["export-dataset", "shapes", "--format", "coco", "--to", "sightline-workspace"], 3, ["not empty"]),
        (["nonsense"], 2, ["nonsense"]),
    ],
)
def test_errors_are_one_sentence(place: Path, arguments: list[str], code: int, words: list[str]) -> None:
    done = sightline(*arguments, cwd=place)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in " ".join(done.stderr.split())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = sightline("inspect", "nothing", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_empty_workspace_says_what_to_do(tmp_path: Path) -> None:
    done = sightline("datasets", cwd=tmp_path)
    assert done.returncode == 0
    assert "sightline ingest" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(tmp_path: Path) -> None:
    assert "ingest" in sightline("--help", cwd=tmp_path).stdout
    assert sightline("--version", cwd=tmp_path).stdout.startswith("sightline ")
    assert "--stratify" in sightline("ingest", "-h", cwd=tmp_path).stdout
