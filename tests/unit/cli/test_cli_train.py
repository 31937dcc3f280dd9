"""Training from the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from programs import need_mounts
from sightline.data.parallel import num_cores
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model

COMMAND = [sys.executable, "-m", "sightline"]
SMALL = ["--epochs", "2", "--batch", "4", "--size", "64", "--set", "train.threads=1"]


def sightline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True)


def test_train_stop_go_on_and_evaluate(tmp_path: Path) -> None:
    assert sightline("synth", "shapes", "--images", "40", cwd=tmp_path).returncode == 0
    command = ["train", "shapes", *SMALL]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*COMMAND, *command, "--epochs", "200"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    while "1/200" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == 143
    assert "the same command goes on from here" in rest
    stopped = next((tmp_path / "sightline-workspace" / "runs").iterdir()).name
    done = sightline("evaluate", stopped, "shapes", "--split", "train", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is unfinished (epoch" in done.stdout

    done = sightline(*command, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["epochs"] == 2
    assert run["resumed_at_step"] == 0
    assert json.loads(sightline(*command, "--json", cwd=tmp_path).stdout)["resumed_at_step"] == run["steps"]

    done = sightline("evaluate", run["name"], "shapes", "--split", "test", "--iou", "0.33", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "circle" in done.stdout
    done = sightline(
        "evaluate", run["name"], "shapes", "--json", "--batch", "3", "--score-threshold", "0.02", cwd=tmp_path
    )
    found = json.loads(done.stdout)
    assert found["score"] == 0.02
    assert len(found["confusion"]) == len(found["per_class"]) + 1
    # Shapes are not among DeepPCB's types; nothing is written before that is known.
    done = sightline("evaluate", run["name"], "shapes", "--write-deeppcb", "out", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "is not one of DeepPCB's" in done.stderr


def test_boards_in_the_form_of_deeppcb(tmp_path: Path) -> None:
    assert sightline("synth", "boards", "--images", "40", "--size", "160", cwd=tmp_path).returncode == 0
    run = json.loads(sightline("train", "boards", *SMALL, "--lr", "0.01", "--json", cwd=tmp_path).stdout)
    for purpose in ("map", "f"):
        arguments = ("--split", "train", "--write-deeppcb", purpose, "--deeppcb-for", purpose)
        done = sightline("evaluate", run["name"], "boards", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "true / found as" in done.stdout
    lines = {
        purpose: {file.name: file.read_text().splitlines() for file in (tmp_path / purpose).iterdir()}
        for purpose in ("map", "f")
    }
    dataset = json.loads((tmp_path / "sightline-workspace/datasets/boards/dataset.json").read_text())
    assert len(lines["map"]) == len(lines["f"]) == dataset["splits"]["train"]["images"]
    assert all(set(lines["f"][name]) <= set(lines["map"][name]) for name in lines["map"])


def test_a_read_only_workspace_is_named(tmp_path: Path, read_only: Path) -> None:
    assert sightline("synth", "shapes", "--images", "8", cwd=tmp_path).returncode == 0
    dataset = str(tmp_path / "sightline-workspace" / "datasets" / "shapes")
    for workspace in (read_only, read_only / "new"):
        done = sightline("train", dataset, *SMALL, "--workspace", str(workspace), cwd=tmp_path)
        said = " ".join(done.stderr.split())
        assert (done.returncode, "bug" in said) == (3, False), said
        assert f"cannot write to '{read_only}'" in said
        assert "give another place with --workspace" in said


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory that nobody can write to; root can write to all but a read-only file system."""
    place = tmp_path / "read-only"
    place.mkdir()
    if os.geteuid():
        place.chmod(0o555)
        yield place
        return
    need_mounts()  # Permissions do not stop root.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    sightline("synth", "shapes", "--images", "20", cwd=tmp_path)
    model = make_model("nano", num_classes=3, size=64)
    info = describe(model, name="nano", classes=("circle", "square", "triangle"))
    save_bundle(tmp_path / "bundle", model.state_dict(), info, {})
    for arguments, code, words in (
        (["train", "shapes", "--model", "resnet18"], 2, "take a detector such as nano"),
        (["train", "shapes", "--model", "nanno"], 2, "'nanno' is not known"),
        (["train", "nothing"], 3, "no dataset"),
        (["evaluate", "nothing", "shapes"], 3, "there is no model"),
        (["evaluate", "./bundle", "shapes", "--engine", "warp"], 2, "engine 'warp' is not known: take one of auto"),
        (["evaluate", "./bundle", "shapes", "--engine", "torch", "--size", "16"], 2, "greater than or equal to 32"),
    ):
        done = sightline(*arguments, cwd=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert words in " ".join(done.stderr.split())


def test_the_threshold_is_that_of_validation(tmp_path: Path) -> None:
    assert sightline("synth", "shapes", "--images", "60", cwd=tmp_path).returncode == 0
    run = json.loads(sightline("train", "shapes", *SMALL, "--lr", "0.01", "--no-track", "--json", cwd=tmp_path).stdout)
    model = tmp_path / "sightline-workspace" / "runs" / run["name"] / "model" / "model.json"
    chosen = json.loads(model.read_text())["score_threshold"]
    assert chosen is not None
    for split in ("train", "test"):
        found = json.loads(
            sightline("evaluate", run["name"], "shapes", "--split", split, "--json", cwd=tmp_path).stdout
        )
        assert found["score"] == chosen


def test_a_run_as_a_page(tmp_path: Path) -> None:
    sightline("synth", "shapes", "--to", "shapes", "--images", "12", cwd=tmp_path)
    settings = ["--epochs", "1", "--size", "64", "--model", "nano", "--no-track", "--name", "small"]
    assert sightline("train", "shapes", *settings, cwd=tmp_path).returncode == 0
    done = sightline("report", "small", "--to", "run.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "run.html").read_text("utf-8")
    assert "Training run" in page
    assert "mAP50" in page
    assert page.count("data:image/jpeg;base64,") >= 1
    assert "<script" not in page


NOTES_WHAT_IS_STARTED = """
import os, sys
def note(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"):
        with open(os.environ["STARTED"], "a") as started:
            print(event, arguments, file=started)
sys.addaudithook(note)
open(os.environ["STARTED"], "a").close()
"""


def test_far_too_many_workers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """The interpreter notes every process that it starts."""
    sightline("synth", "shapes", "--images", "20", cwd=tmp_path)
    many, started = str(max(99, 2 * num_cores() + 1)), tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(NOTES_WHAT_IS_STARTED)
    done = subprocess.run(
        [*COMMAND, "train", "shapes", *SMALL, "--workers", many],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "STARTED": str(started)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert f"{many} workers" in said
    assert f"give --workers {num_cores()}, or --oversubscribe" in said
    assert not (tmp_path / "sightline-workspace" / "runs").exists()
    assert sys.executable not in started.read_text(), "workers are processes of Python"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_no_bug(tmp_path: Path) -> None:
    sightline("synth", "shapes", "--images", "20", cwd=tmp_path)
    done = sightline("train", "shapes", *SMALL, "--set", "train.device=cuda", "--workers", "2", cwd=tmp_path)
    assert (done.returncode, "This is a bug" in done.stderr) == (2, False), done.stderr
    assert "torch finds no GPU on this machine" in " ".join(done.stderr.split())
