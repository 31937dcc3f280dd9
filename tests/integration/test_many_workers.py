"""The real command with several worker processes, disturbed as machines disturb it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import sightline
from sightline.training.checkpoint import CheckpointDirectory

EPOCHS = 8
TIMEOUT_S = 240


class Command:
    """`sightline train` in a process of its own, watched through what it prints."""

    def __init__(self, workspace: Path, name: str, *options: str) -> None:
        self.workspace, self.run = workspace, workspace / "runs" / name
        settings = ("train.size=64", "train.precision=float32", "train.checkpoint_every_s=0.5", "augment.scale=0.2")
        flags = ["--workspace", str(workspace), "--name", name, "--epochs", str(EPOCHS), "--batch", "4", "--no-track"]
        flags += [text for setting in settings for text in ("--set", setting)]
        self.command = [sys.executable, "-m", "sightline", "train", "shapes", "--model", "nano", *flags, *options]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "Command":
        self.found = self.checkpoints()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self

    def checkpoints(self) -> set[str]:
        return {place.name for place in (self.run / "checkpoints").glob("step-*")}

    def workers(self) -> list[int]:
        """Process ids, by rank."""
        listing = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in listing.splitlines() if "elastic_worker" in line and str(self.run) in line]
        return sorted(int(line.split()[0]) for line in lines)

    def wait_for(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not reached():
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.02)

    def wait_for_checkpoint(self) -> None:
        """One that this process has saved."""
        self.wait_for(lambda: self.checkpoints() - self.found)

    def output(self) -> str:
        assert self.process is not None
        return self.process.communicate(timeout=TIMEOUT_S)[0]

    def finish(self) -> str:
        text = self.output()
        assert self.process is not None
        assert self.process.returncode == 0, text
        return text

    def weights(self) -> dict[str, torch.Tensor]:
        found = CheckpointDirectory(self.run / "checkpoints").load_latest()
        assert found is not None
        assert found.progress["epoch"] == EPOCHS
        assert found.ema is not None
        return {**found.weights, **{f"ema {name}": tensor for name, tensor in found.ema.items()}}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


@pytest.fixture(scope="module")
def undisturbed(workspace: Path) -> dict[str, torch.Tensor]:
    command = Command(workspace, "undisturbed", "--workers", "2", "--verify").start()
    text = command.finish()
    assert "was lost" not in text
    assert re.search(r"verified epoch 8: weights \w{12} on all workers; images seen: rank 0 \d+, rank 1 \d+", text)
    return command.weights()


@pytest.fixture
def start(workspace: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(*options: str) -> Command:
        name = re.sub(r"\W+", "-", request.node.name).strip("-")
        started.append(Command(workspace, name, *(options or ("--workers", "2"))).start())
        return started[-1]

    yield begin
    for command in started:
        assert command.process is not None
        command.process.kill()
        command.process.communicate()


@pytest.mark.parametrize(
    ("how", "rank"), [(signal.SIGKILL, 0), (signal.SIGTERM, 1)], ids=["rank 0 killed", "rank 1 terminated"]
)
def test_a_lost_worker(
    start: Callable[..., Command], undisturbed: dict[str, torch.Tensor], how: signal.Signals, rank: int
) -> None:
    command = start()
    command.wait_for_checkpoint()
    os.kill(command.workers()[rank], how)
    text = command.finish()
    assert "was lost at step" in text
    assert same(command.weights(), undisturbed)
    assert not command.workers()


def test_a_worker_that_hangs(start: Callable[..., Command], undisturbed: dict[str, torch.Tensor]) -> None:
    command = start("--workers", "2", "--set", "workers.hang_after_s=6")
    command.wait_for_checkpoint()
    os.kill(command.workers()[1], signal.SIGSTOP)
    assert "worker 1 gave no sign of life for" in command.finish()
    assert same(command.weights(), undisturbed)


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_command_that_is_asked_to_stop(
    start: Callable[..., Command], undisturbed: dict[str, torch.Tensor], how: signal.Signals, code: int
) -> None:
    command = start()
    command.wait_for_checkpoint()
    assert command.process is not None
    command.process.send_signal(how)
    assert "the checkpoint is saved" in command.output()
    assert command.process.returncode == code
    assert not command.workers()
    again = start()
    assert "went on from step" in again.finish()
    assert same(again.weights(), undisturbed)


def test_a_driver_that_is_killed_takes_its_workers_with_it(
    start: Callable[..., Command], undisturbed: dict[str, torch.Tensor]
) -> None:
    command = start()
    command.wait_for_checkpoint()
    assert command.process is not None
    command.process.kill()
    command.process.wait()
    deadline = time.monotonic() + 20
    while command.workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not command.workers()
    again = start()
    again.finish()
    assert same(again.weights(), undisturbed)


def test_another_number_of_workers_goes_on_in_mid_epoch(
    start: Callable[..., Command], undisturbed: dict[str, torch.Tensor]
) -> None:
    """Two, one, two; the sums of float32 come in another order then, hence a tolerance."""
    for workers in ("2", "1"):
        command = start("--workers", workers, "--verify")
        command.wait_for_checkpoint()
        assert command.process is not None
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(TIMEOUT_S) in (0, 143)
    command = start("--workers", "2", "--verify")
    command.finish()
    for name, tensor in command.weights().items():
        if tensor.is_floating_point():
            assert (tensor - undisturbed[name]).norm() <= 0.05 * undisturbed[name].norm() + 1e-3, name


def test_under_a_plain_torchrun(workspace: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    command = Command(workspace, "plain", "--verify")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    command.command = launcher + command.command
    text = command.start().finish()
    assert text.count("verified epoch 8") == 1, "only one of them speaks"
    assert same(command.weights(), undisturbed)
