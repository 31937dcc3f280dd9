"""Workers do not outlive their driver, whatever they are doing when it dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Command

import sightline
from sightline.lifeline import PARENT_LOST

WITHIN_S = 10.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


@contextmanager
def started(workspace: Path, name: str) -> Iterator[Command]:
    command = Command(workspace, name, "--workers", "2").start()
    assert command.process is not None
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()
        for pid in command.workers():
            os.kill(pid, signal.SIGKILL)


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
