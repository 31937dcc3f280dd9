"""The real command with several workers, on both launchers, disturbed as machines disturb it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commands import FAULTS, TIMEOUT_S, Command, distance, same
from ray_nodes import RayCluster

import sightline
from programs import need_mounts
from sightline.config import load_config

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own.


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


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """While a file of this name exists, the loss of rank 1 is not a number; known to nodes of Ray from their start."""
    file = tmp_path_factory.mktemp("faults") / "nan"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAULTS))
        patch.setenv("SIGHTLINE_TEST_NAN", str(file))
        yield file


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def on(request: pytest.FixtureRequest, faults: Path) -> RayCluster | None:
    """The cluster to train on; None has subprocesses of the driver."""
    return request.getfixturevalue("cluster") if request.param == "ray" else None


@pytest.fixture
def start(workspace: Path, on: RayCluster | None, request: pytest.FixtureRequest) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(*options: str, place: Path = workspace) -> Command:
        name = re.sub(r"\W+", "-", request.node.name).strip("-")
        started.append(Command(place, name, *(options or ("--workers", "2")), cluster=on).start())
        return started[-1]

    yield begin
    for command in started:
        assert command.process is not None
        command.process.kill()
        command.process.communicate()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("how", "rank"), [(signal.SIGKILL, 0), (signal.SIGTERM, 1)], ids=["rank 0 killed", "rank 1 terminated"]
)
def test_a_lost_worker(
    start: Callable[..., Command],
    on: RayCluster | None,
    undisturbed: dict[str, torch.Tensor],
    how: signal.Signals,
    rank: int,
) -> None:
    command = start()
    command.wait_for_checkpoint()
    workers = command.workers()
    if how == signal.SIGTERM and not on:
        # A worker of ours ends seconds later, unless it is asked to stop. A quick machine is done by then.
        with stopped(workers[1 - rank]):
            os.kill(workers[rank], how)
            command.wait_for(lambda: workers[rank] not in command.workers())
    else:
        os.kill(workers[rank], how)
    text = command.finish()
    assert re.search(r"was lost.* at step", text)
    assert same(command.weights(), undisturbed)
    command.wait_until_workers_are_gone()


def test_a_worker_that_hangs(
    start: Callable[..., Command], on: RayCluster | None, undisturbed: dict[str, torch.Tensor]
) -> None:
    command = start("--workers", "2", "--set", "workers.hang_after_s=6")
    command.wait_for_checkpoint()
    hung = command.workers()[1]
    os.kill(hung, signal.SIGSTOP)
    text = command.finish()
    assert re.search("a worker was lost" if on else r"worker 1 gave no sign of life for", text), text
    assert same(command.weights(), undisturbed)
    command.wait_until_workers_are_gone()


def test_a_main_thread_that_hangs(
    start: Callable[..., Command], faults: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """The thread of its heartbeat goes on; what that says does not."""
    command, hang = start("--workers", "2", "--set", "workers.hang_after_s=4"), faults.with_suffix(".hang")
    command.wait_for_checkpoint()
    before = set(command.workers())
    hang.touch()
    try:
        command.wait_for(lambda: not before & set(command.workers()))
    finally:
        hang.unlink()
    assert re.search(r"worker 1 has not moved on for \d+ s \(step\): ended", command.finish())
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
    command.wait_until_workers_are_gone()
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
    command.wait_until_workers_are_gone()
    again = start()
    again.finish()
    assert same(again.weights(), undisturbed)


def test_a_torn_checkpoint(start: Callable[..., Command], undisturbed: dict[str, torch.Tensor]) -> None:
    """As a crash of the machine may leave it: the run goes on from the one before."""
    command = start()
    command.wait_for(lambda: len(command.checkpoints()) > 1)
    assert command.process is not None
    command.process.send_signal(signal.SIGTERM)
    command.process.wait(TIMEOUT_S)
    torn = max((command.run / "checkpoints").glob("step-*")) / "optimizer.pt"
    os.truncate(torn, torn.stat().st_size // 2)
    again = start()
    assert "went on from step" in again.finish()
    assert same(again.weights(), undisturbed)


def test_another_number_of_workers_goes_on_in_mid_epoch(
    start: Callable[..., Command], undisturbed: dict[str, torch.Tensor]
) -> None:
    """Two, one, two. Every epoch is checked to have seen every image once, whoever saw its first part.

    The sums of float32 come in another order then, and AdamW makes steps of it: hence a tolerance.
    """
    text = ""
    for workers in ("2", "1"):
        command = start("--workers", workers, "--verify")
        command.wait_for_checkpoint()
        assert command.process is not None
        command.process.send_signal(signal.SIGTERM)
        text += command.output()
        assert command.process.returncode == 143, text
    command = start("--workers", "2", "--verify")
    text += command.finish()
    verified = [int(epoch) for epoch in re.findall(r"verified epoch (\d)", text)]
    assert verified == list(range(1, 9)), text
    assert distance(command.weights(), undisturbed) < 0.03


def test_a_loss_that_is_not_a_number_on_one_rank(
    start: Callable[..., Command], faults: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    command = start()
    command.wait_for_checkpoint()
    faults.touch()
    try:
        assert re.search(r"the loss is not finite: loss nan.* at step \d+ .*images \S+", command.fail(), re.S)
    finally:
        faults.unlink()
    command.wait_until_workers_are_gone()
    again = start()
    again.finish()
    assert same(again.weights(), undisturbed)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_disk_that_cannot_be_read_for_a_while(
    workspace: Path, undisturbed: dict[str, torch.Tensor], failing_reads: Path, tmp_path: Path, workers: str
) -> None:
    """The run waits for it, and trains the same."""
    flag = tmp_path / "eio"
    command = Command(workspace, f"unreadable-{workers}", "--workers", workers).start(
        LD_PRELOAD=str(failing_reads),
        SIGHTLINE_TEST_EIO=str(flag),
        SIGHTLINE_TEST_EIO_BELOW=str(workspace / "datasets"),
    )
    command.wait_for_checkpoint()
    flag.touch()
    command.wait_for(lambda: (tmp_path / "eio.log").exists())
    time.sleep(2)
    flag.unlink()
    text = command.finish()
    assert "was lost" not in text
    if workers == "2":
        assert same(command.weights(), undisturbed)


def test_checkpoints_that_cannot_be_read_for_a_while(
    workspace: Path, undisturbed: dict[str, torch.Tensor], failing_reads: Path, tmp_path: Path
) -> None:
    """The same command waits for them, or ends with the error, and goes on from them; it never begins anew."""
    flag, command = tmp_path / "eio", Command(workspace, "unreadable-checkpoints", "--workers", "2").start()
    command.wait_for_checkpoint()
    assert command.process is not None
    command.process.kill()
    command.output()
    command.wait_until_workers_are_gone()
    left, failing = (
        command.checkpoints(),
        {
            "LD_PRELOAD": str(failing_reads),
            "SIGHTLINE_TEST_EIO": str(flag),
            "SIGHTLINE_TEST_EIO_BELOW": str(command.run / "checkpoints"),
        },
    )
    flag.touch()
    command.start(PYTHONPATH=str(FAULTS), SIGHTLINE_TEST_GIVE_UP_S="1", **failing)
    assert re.search(r"cannot read .*/checkpoints/step-[\d.]+': .*Input/output error", command.fail())
    assert command.checkpoints() == left
    (tmp_path / "eio.log").unlink()
    command.start(**failing)
    command.wait_for(lambda: (tmp_path / "eio.log").exists())
    time.sleep(2)
    assert command.checkpoints() == left
    flag.unlink()
    assert "went on from step" in command.finish()
    assert same(command.weights(), undisturbed)


def test_a_full_disk(
    start: Callable[..., Command], workspace: Path, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """A disk too small for the checkpoints is refused; one that fills up later ends the run, which can be resumed."""
    need_mounts()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", tmp_path], check=True)
    try:
        subprocess.run(["cp", "-r", workspace / "datasets", tmp_path], check=True)
        small = start(place=tmp_path)
        assert "the checkpoints of this run need" in small.output()
        assert small.process is not None
        assert small.process.returncode == 2
        subprocess.run(["mount", "-o", "remount,size=200m", tmp_path], check=True)
        command = start(place=tmp_path)
        command.wait_for_checkpoint()
        subprocess.run(["dd", "if=/dev/zero", f"of={tmp_path / 'filling'}", "bs=64k"], stderr=subprocess.DEVNULL)
        assert "No space left on device" in command.fail()
        assert command.checkpoints()
        command.wait_until_workers_are_gone()
        (tmp_path / "filling").unlink()
        again = start(place=tmp_path)
        assert "went on from step" in again.finish()
        assert same(again.weights(), undisturbed)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_long_temporary_directory(workspace: Path, tmp_path: Path) -> None:
    """No socket has a path below it: the system allows those about a hundred characters."""
    long = tmp_path / ("x" * 60) / ("y" * 60)
    long.mkdir(parents=True)
    command = Command(workspace, "long", "--workers", "2")
    command.start(TMPDIR=str(long)).finish()
    assert list(long.iterdir()) == []


def test_under_a_plain_torchrun(workspace: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    command = Command(workspace, "plain", "--verify")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    command.command = launcher + command.command
    text = command.start().finish()
    assert text.count("verified epoch 8") == 1, "only one of them speaks"
    assert same(command.weights(), undisturbed)


def test_under_a_plain_torchrun_with_images_held_back(tmp_path: Path) -> None:
    """All ranks divide the dataset once, and alike: the scores are those of one process."""
    config = load_config(flags={"ingest": {"split": "train=1"}})
    sightline.synth("shapes", "shapes", images=20, seed=1, config=config, workspace=tmp_path)
    histories = []
    for name, launcher in (
        ("one", ["-m"]),
        ("two", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]),
    ):
        command = [sys.executable, *launcher, "sightline", "train", "shapes", "--workspace", str(tmp_path), "--json"]
        command += ["--model", "nano", "--size", "64", "--epochs", "2", "--batch", "4", "--name", name, "--no-track"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "2 images held back from 'train'" in done.stderr
        histories.append(json.loads(done.stdout)["history"])
    for alone, together in zip(*histories, strict=True):
        assert together == pytest.approx(alone, abs=1e-2)
