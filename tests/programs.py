"""What some tests need and pip cannot bring: programs, and what the system may refuse."""

import os
import subprocess
from typing import NoReturn

import pytest


def need(program: str, found: str | None) -> str:
    """The program; where it is missing, the test is skipped, or fails in CI unless SYSTEM_PACKAGES=no asks for that."""
    if found is None:
        _miss(f"{program} is not installed: scripts/test-programs brings it when run as root")
    return found


def need_mounts() -> None:
    """That file systems may be mounted; by the same rule where they may not."""
    _need_to_run("mounting file systems", "unshare", "--mount", "mount", "-t", "tmpfs", "none", "/tmp")


def need_namespaces(*command: str) -> None:
    """That a command which makes PID namespaces works; by the same rule where it does not."""
    _need_to_run("making PID namespaces", *command)


def _need_to_run(what: str, *command: str) -> None:
    try:
        refused = subprocess.run(command, capture_output=True).returncode != 0
    except FileNotFoundError:
        refused = True
    if refused:
        _miss(f"{what} is refused here: it takes root, and in a container the right to do so (docker run --privileged)")


def _miss(message: str) -> NoReturn:
    if os.environ.get("CI") == "true" and os.environ.get("SYSTEM_PACKAGES") != "no":
        pytest.fail(message)
    pytest.skip(message)
