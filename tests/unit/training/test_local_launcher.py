"""How the driver ends workers on its machine; what they do together is in the integration tests."""

import os
import signal
import subprocess
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil

from sightline.config import Config
from sightline.training.job import Job
from sightline.training.local_launcher import _Attempt, _Worker
from sightline.training.messages import RunProgress
from sightline.training.monitor import RunMonitor


def test_what_a_worker_has_started_is_ended_with_it(tmp_path: Path) -> None:
    """A worker that has died by itself leaves its group behind."""
    script = 'sleep 600 & echo "it went wrong"; echo $! > "$1"; kill -KILL $$'
    with open(tmp_path / "log", "wb") as log:
        command = ["sh", "-c", script, "sh", str(tmp_path / "child")]
        process = subprocess.Popen(command, stdout=log, start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    child = psutil.Process(int((tmp_path / "child").read_text()))
    ours, _ = Pipe()
    worker = _Worker(1, process, ours, os.open(os.devnull, os.O_RDONLY), tmp_path / "log")
    try:
        parts: Any = None  # This worker reads no images.
        monitor = RunMonitor(tmp_path.name, RunProgress(), num_workers=2)
        monitor.begin_attempt(1, 0.0)
        attempt = _Attempt(Job(parts, Config(), None), tmp_path, tmp_path / "store", 1)
        attempt._workers.append(worker)
        attempt._pass_on(monitor, worker, None)
        attempt.close()
        assert monitor.lost == "worker 1 was lost to SIGKILL (out of memory?)"
        gone, _ = psutil.wait_procs([child], 5)
        assert gone == [child]
    finally:
        if child.is_running():
            os.kill(child.pid, signal.SIGKILL)
