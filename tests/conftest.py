"""What all tests share: hypothesis without deadlines, for machines are slow when they are busy; no cached weights."""

import itertools
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("sightline", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("sightline")

# What `--model auto` takes depends on the weights that torch has downloaded before; in tests it has none.
os.environ["TORCH_HOME"] = os.path.join(tempfile.gettempdir(), "sightline-tests-without-weights")  # noqa: PTH118
# Databases that tests confirm are not added to the user's own list.
os.environ["XDG_STATE_HOME"] = os.path.join(tempfile.gettempdir(), "sightline-tests-state")  # noqa: PTH118


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What may pass by itself is tried twenty times in a moment.

    The clock counts failures, so that a machine that is busy does not give up early.
    """
    from sightline import retry

    usual = vars(retry.STORAGE_RETRY).copy()  # The policy is frozen, and many modules hold it.
    vars(retry.STORAGE_RETRY).update(give_up_after_s=20, max_wait_s=0.01)
    monkeypatch.setattr(retry, "monotonic", itertools.count().__next__)
    yield
    vars(retry.STORAGE_RETRY).update(usual)


_BEFORE = pytest.StashKey[set[str]]()
_CACHES = {".hypothesis", ".pytest_cache", "__pycache__"}


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_BEFORE] = set(os.listdir())  # noqa: PTH208


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if tests left anything in the current directory, as a command without a workspace does."""
    left = set(os.listdir()) - session.config.stash[_BEFORE] - _CACHES  # noqa: PTH208
    if left and not hasattr(session.config, "workerinput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line(f"\nTests left {', '.join(sorted(left))} in {Path.cwd()}.", red=True)


_TRAINING = re.compile(
    r"tests/integration/test_(engines|overfit)\.py::\w+\[(?P<family>.+?)(-(torch|onnx(runtime)?|openvino))?\]"
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, one process runs all tests of a family, and trains it once; the others go to both."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            training = _TRAINING.fullmatch(nodeid)
            return training["family"] if training else nodeid

    return Scheduling(config, log)
