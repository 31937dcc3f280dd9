"""Several workers on this machine, as subprocesses of the driver.

The driver starts them, listens to them, and starts all of them again, from the last checkpoint, when one is lost. It
ends a worker that hangs, passes on a request to stop, and gives up when workers die without getting any further.
Workers meet through a file in a private directory and talk over loopback: no port is open to other machines.
"""

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from sightline.config import Config
from sightline.errors import TrainingError
from sightline.tracking.machine import Placement
from sightline.training.job import Job, Outcome
from sightline.training.keeper import RESTARTS, Keeper
from sightline.training.local_worker import WorkerStart
from sightline.training.loop import Stopped
from sightline.training.placement import local_placement
from sightline.training.rendezvous import loopback_environment

LOGS = "logs"
_POLL_S = 0.2
_START_S = 600.0
"""How long a worker may take from its start to its first heartbeat: imports, on a machine that is busy."""
_END_S = 10.0
"""How long workers may take to end after the run is over, before they are killed."""
_SETTLE_S = 2.0
"""How long after a worker lost its peers the driver waits to see which process has died."""
_LAST_WORDS = ("done", "bye", "stopped", "failed", "crashed", "alone")


class LocalLauncher:
    """Trains with several processes on this machine; rank 0 keeps checkpoints in the run's directory."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def placement(self) -> Placement:
        """How the run is spread."""
        return local_placement(self._config, workers=self._config.workers.count, launcher="local")

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end; workers that die are started again as long as the run gets any further."""
        failures, saves = 0, keeper.saves
        (directory / LOGS).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sightline-") as private:
            while True:
                attempt = _Attempt(job, directory, Path(private) / f"store-{failures}-{keeper.saves}", keeper)
                try:
                    outcome = attempt.run()
                finally:
                    attempt.close()
                if outcome is not None:
                    return outcome
                if keeper.should_stop():
                    raise Stopped
                failures, saves = (failures + 1 if keeper.saves == saves else 1), keeper.saves
                if failures > RESTARTS:
                    raise TrainingError(
                        f"workers died {failures} times without a new checkpoint in between, the last time "
                        f"{attempt.lost}; what they printed is in {str(directory / LOGS)!r}"
                    )


@dataclass
class _Worker:
    """A process as the driver knows it."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: Connection
    lifeline: int
    log: Path
    started: float = field(default_factory=time.monotonic)
    heard: float | None = None
    asked_to_stop: bool = False
    ended_by_us: bool = False
    last_word: str = ""


class _Attempt:
    """The workers from their start until they have ended.

    Attributes:
        lost: Which worker was lost, and how; empty as long as none is.
    """

    def __init__(self, job: Job, directory: Path, store: Path, keeper: Keeper) -> None:
        self._job, self._directory, self._store, self._keeper = job, directory, store, keeper
        self._size = job.config.workers.count
        self._workers: list[_Worker] = []
        self._inbox: queue.SimpleQueue[tuple[_Worker, str, Any]] = queue.SimpleQueue()
        self._over_since: float | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._stopped = False
        self._alone: tuple[float, str] | None = None
        self.lost = ""

    def run(self) -> Outcome | None:
        """The outcome; None if a worker was lost.

        Raises:
            Stopped: The run was asked to stop, and has saved itself.
            SightlineError: A worker failed in a way that would not be better the next time.
        """
        for rank in range(self._size):
            try:
                self._workers.append(self._start(rank))
            except OSError as error:
                raise TrainingError(f"cannot start worker {rank} of {self._size}: {error}") from error
        while self._running() and not self.lost and self._error is None:
            self._poll()
            self._supervise()
        self._poll_rest()
        if self._error:
            raise self._error
        if self._stopped:
            raise Stopped
        if self._outcome is None:
            self._keeper.on_lost(self.lost or "all workers ended")
        return self._outcome

    def close(self) -> None:
        """End what still runs, and wait for it: no worker of this attempt outlives it."""
        for worker in self._workers:
            self._kill(worker)
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):  # It waits for a disk, and ends before it runs again.
                worker.process.wait(_END_S)
            worker.connection.close()
            os.close(worker.lifeline)

    def _start(self, rank: int) -> _Worker:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(True)  # Whatever default timeout a program has set.
        reads, writes = os.pipe()
        log = self._directory / LOGS / f"rank-{rank}.log"
        # -P: no module that lies in the current directory is imported in place of another.
        command = [sys.executable, "-P", "-m", "sightline.training.local_worker", str(self._directory), str(rank)]
        with ExitStack() as opened, ExitStack() as kept:
            kept.enter_context(ours)
            kept.callback(os.close, writes)
            opened.callback(os.close, reads)
            opened.enter_context(theirs)
            output = opened.enter_context(open(log, "ab"))
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(reads)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **loopback_environment()},
                pass_fds=(theirs.fileno(), reads),
                start_new_session=True,  # Ctrl-C is for the driver, which asks its workers to stop.
            )
            kept.pop_all()
        worker = _Worker(rank, process, Connection(ours.detach()), writes, log)
        threading.Thread(target=self._listen, args=(worker,), daemon=True, name=f"sightline-rank-{rank}").start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        """Put what a worker says into the inbox, until its end; in a thread, for a worker may stop in mid-message."""
        job = self._job if worker.rank == 0 else replace(self._job, weights=None)
        try:
            # Plain pickle: a connection's own would pass tensors by handles of this process.
            worker.connection.send_bytes(pickle.dumps(WorkerStart(job, self._size, self._store)))
            while True:
                self._inbox.put((worker, *worker.connection.recv()))
        except (OSError, EOFError):
            pass  # Its process has ended.
        finally:
            self._inbox.put((worker, "gone", None))

    def _running(self) -> bool:
        if self._over_since and time.monotonic() - self._over_since > 2 * _END_S:
            return False
        return any(worker.last_word != "gone" for worker in self._workers)

    def _poll(self) -> None:
        with suppress(queue.Empty):
            self._handle(*self._inbox.get(timeout=_POLL_S))
        self._poll_rest()

    def _poll_rest(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._handle(*self._inbox.get_nowait())

    def _handle(self, worker: _Worker, kind: str, content: Any) -> None:
        worker.heard = time.monotonic()
        match kind:
            case "beat":
                self._keeper.on_memory(worker.rank, content.memory)
                if content.hangs(self._job.config.workers.hang_after_s):
                    self._end_hung(worker, f"has not moved on for {content.idle_s:.0f} s ({content.phase})")
            case "done":
                self._outcome = content
                self._over_since = self._over_since or time.monotonic()
            case "stopped":
                self._stopped = True
                self._over_since = self._over_since or time.monotonic()
            case "failed":
                self._error = self._error or content
            case "crashed":
                self._error = self._error or TrainingError(f"worker {worker.rank} failed:\n{content}")
            case "alone":
                self._alone = self._alone or (worker.heard, content)
            case "bye" | "gone":
                pass
            case _:
                self._keeper.hear(kind, content)
        if kind == "gone" and not worker.last_word and self._over_since is None:
            self.lost = self.lost or f"worker {worker.rank} was lost{self._how(worker)}"
        if kind in _LAST_WORDS or kind == "gone":
            worker.last_word = kind
        alive = sum(worker.last_word == "" and worker.heard is not None for worker in self._workers)
        self._keeper.on_workers(alive, self._size)

    def _supervise(self) -> None:
        """End workers that give no sign of life, and tell all of them once when they are to stop."""
        now, timeout = time.monotonic(), self._job.config.workers.hang_after_s
        for worker in self._workers:
            if worker.last_word:
                continue
            if worker.heard is None and now - worker.started > _START_S:
                self._end_hung(worker, f"did not start within {_START_S:.0f} s")
            elif worker.heard is not None and now - worker.heard > timeout:
                self._end_hung(worker, f"gave no sign of life for {now - worker.heard:.0f} s")
        if self._alone and now - self._alone[0] > _SETTLE_S:
            self.lost = self.lost or f"workers lost each other ({self._alone[1][:300]})"
        if self._over_since and now - self._over_since > _END_S:
            for worker in self._workers:
                self._kill(worker)
        if self._keeper.should_stop():
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        for worker in self._workers:
            if not worker.asked_to_stop and worker.heard is not None:
                worker.asked_to_stop = True
                with suppress(OSError):
                    worker.connection.send("stop")

    def _end_hung(self, worker: _Worker, what: str) -> None:
        self._keeper.note(f"worker {worker.rank} {what}: ended")
        worker.heard, worker.ended_by_us = time.monotonic(), True
        self._kill(worker)
        # Not only when its end is seen: a process that waits for a disk in the kernel may outlive its signal.
        self.lost = self.lost or f"worker {worker.rank} was lost"

    def _kill(self, worker: _Worker) -> None:
        """End a worker and the processes that it has started, which are in its group and may have outlived it."""
        # Until it is waited for, its id, and that of its group, cannot become another process's.
        if worker.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of which all have ended.
                os.killpg(worker.process.pid, signal.SIGKILL)

    def _how(self, worker: _Worker) -> str:
        """How a process ended, and the last lines that it printed, for the error message."""
        if not _ends_within(worker.process, 1):
            return ""
        self._kill(worker)
        code = worker.process.wait()
        if not code or worker.ended_by_us:
            return ""
        if code < 0:
            return f" to {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        printed = worker.log.read_bytes()[-2000:].decode("utf-8", "replace").strip().splitlines()[-3:]
        return f" with exit code {code}: {' / '.join(printed)}"


def _ends_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether a process has ended by then; unlike `wait`, this leaves its id taken."""
    deadline = time.monotonic() + seconds
    with suppress(psutil.NoSuchProcess):  # Where SIGCHLD is ignored, the kernel reaps it.
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    return True
