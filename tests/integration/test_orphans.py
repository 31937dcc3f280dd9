"""Processes do not outlive the command that has started them, whatever they are doing when it dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from commands import TIMEOUT_S, Command
from PIL import Image

import sightline
from sightline.lifeline import PARENT_LOST

WITHIN_S = 10.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


@contextmanager
def started(workspace: Path, name: str, *options: str) -> Iterator[Command]:
    command = Command(workspace, name, "--workers", "2", *options).start()
    assert command.process is not None
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()
        for pid in command.workers():
            os.kill(pid, signal.SIGKILL)


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """All that it has started, and they; each is known by its id and the time of its start."""
    return psutil.Process(process.pid).children(recursive=True)


def wait_for_descendants(process: "subprocess.Popen[str]", word: str, count: int) -> list[psutil.Process]:
    """All descendants, once enough of them have the word in their command line."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = descendants(process)
        with suppress(psutil.NoSuchProcess):
            if sum(word in " ".join(each.cmdline()) for each in found) >= count:
                return found
        assert process.poll() is None, "it has ended already"
        assert time.monotonic() < deadline, [each.cmdline() for each in found]
        time.sleep(0.05)


def assert_all_gone(found: list[psutil.Process]) -> None:
    """Also those that are nobody's any more; what is left is ended, for the next test."""
    _, left = psutil.wait_procs(found, WITHIN_S)
    commands = [" ".join(each.cmdline()) for each in left]
    for each in left:
        each.kill()
    assert commands == []


def kill_driver(command: Command) -> float:
    """Kill it as a machine that is out of memory would; when."""
    assert command.process is not None
    command.process.kill()
    command.process.wait()
    return time.monotonic()


def assert_gone(command: Command, since: float, *, but: int | None = None) -> None:
    while [pid for pid in command.workers() if pid != but]:
        assert time.monotonic() - since < WITHIN_S, "workers are left"
        time.sleep(0.1)


def test_a_driver_that_dies_during_its_workers_imports(workspace: Path) -> None:
    with started(workspace, "imports") as command:
        command.wait_for(lambda: len(command.workers()) == 2)
        assert_gone(command, kill_driver(command))


def test_a_driver_that_dies_while_a_worker_waits_for_another(workspace: Path) -> None:
    with started(workspace, "collective") as command:
        command.wait_for_checkpoint()
        stopped = command.workers()[1]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(2)  # By now the other waits in an all-reduce.
        died = kill_driver(command)
        assert_gone(command, died, but=stopped)
        os.kill(stopped, signal.SIGCONT)
        assert_gone(command, time.monotonic())


def test_a_driver_that_dies_on_a_busy_machine(workspace: Path) -> None:
    with started(workspace, "busy") as command:
        command.wait_for_checkpoint()
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        try:
            time.sleep(1)
            assert_gone(command, kill_driver(command))
        finally:
            for process in busy:
                process.kill()
                process.wait()


def test_a_driver_that_dies_while_its_workers_read_images_in_processes(workspace: Path) -> None:
    with started(workspace, "loaders", "--set", "loader.processes=2") as command:
        command.wait_for_checkpoint()
        assert command.process is not None
        found = wait_for_descendants(command.process, "forkserver", 6)  # For each worker a server and two of its forks.
        kill_driver(command)
        assert_all_gone(found)


def test_a_worker_that_dies_takes_the_processes_of_its_loader_with_it(tmp_path: Path) -> None:
    """In an epoch that is long enough for them to be at work."""
    sightline.synth("shapes", "shapes", images=400, seed=1, workspace=tmp_path)
    with started(tmp_path, "worker", "--set", "loader.processes=2", "--epochs", "100") as command:
        command.wait_for_checkpoint()
        worker = psutil.Process(command.workers()[1])
        found = worker.children(recursive=True)
        assert len(found) >= 4, "a server, two of its forks, and the tracker of what they share"
        worker.kill()
        assert_all_gone(found)


def test_an_ingest_that_dies_takes_its_pool_with_it(tmp_path: Path) -> None:
    image = tmp_path / "noise.png"
    Image.effect_noise((500, 500), 100).save(image)
    (tmp_path / "images" / "noise").mkdir(parents=True)
    for number in range(5000):  # A pool has something to do from two shards on, and must not be done too soon.
        os.link(image, tmp_path / "images" / "noise" / f"{number}.png")
    source = ["ingest", str(tmp_path / "images"), "--to", str(tmp_path / "dataset"), "--workspace", str(tmp_path)]
    command = [sys.executable, "-m", "sightline", *source, "--set", "ingest.workers=2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    found = []
    try:
        found = wait_for_descendants(process, "popen_loky", 2)
        time.sleep(3)  # By now they are at work.
        found = descendants(process)
        assert len(found) >= 4, "two processes and the trackers of what they share"
    finally:
        process.kill()
        process.wait()
        assert_all_gone(found)


def test_a_main_thread_that_is_busy_does_not_keep_a_process_alive() -> None:
    reads, writes = os.pipe()
    code = "import sys; from sightline.lifeline import exit_with_parent; exit_with_parent(int(sys.argv[1]))\n"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}while True: sum(range(1000))", str(reads)], pass_fds=(reads,)
    )
    try:
        os.close(reads)
        time.sleep(1)
        assert child.poll() is None, "it lives as long as the pipe is open"
        os.close(writes)
        assert child.wait(WITHIN_S) == PARENT_LOST
    finally:
        child.kill()
