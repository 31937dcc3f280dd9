"""Several workers on this machine, as subprocesses of the driver.

The driver starts them, passes what they report to the monitor, and starts all of them again, from the last checkpoint,
when one is lost. It kills those that the monitor says hang, and passes on a request to stop. Workers meet through a
file in a private directory and talk over loopback: no port is open to other machines.
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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from sightline.config import Config
from sightline.errors import Stopped, TrainingError
from sightline.tracking.machine import Placement
from sightline.training.attempt import AttemptFence
from sightline.training.job import Job
from sightline.training.local_worker import WorkerStart
from sightline.training.messages import LAST_WORDS, Exited, Message, Origin, Outcome
from sightline.training.monitor import END_S, RunMonitor
from sightline.training.placement import local_placement
from sightline.training.rendezvous import loopback_environment

LOGS = "logs"
_POLL_S = 0.2


class LocalLauncher:
    """Trains with several processes on this machine; rank 0 keeps checkpoints in the run's directory."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def placement(self) -> Placement:
        """How the run is spread."""
        return local_placement(self._config, workers=self.num_supervised, launcher="local")

    @property
    def num_supervised(self) -> int:
        """See `Launcher.num_supervised`."""
        return self._config.workers.count

    def train(self, job: Job, directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> Outcome:
        """Train to the end; workers that die are started again as long as the run makes progress."""
        (directory / LOGS).mkdir(parents=True, exist_ok=True)
        fence = AttemptFence(directory)
        with tempfile.TemporaryDirectory(prefix="sightline-") as private:
            while True:
                number = fence.advance(should_stop)
                monitor.begin_attempt(number, time.monotonic())
                attempt = _Attempt(job, directory, Path(private) / f"store-{number}", number)
                try:
                    attempt.run(monitor, should_stop)
                finally:
                    attempt.close()
                outcome = monitor.end_attempt()
                if outcome is not None:
                    return outcome
                if should_stop():
                    raise Stopped
                monitor.check_restarts(
                    f"the last time {monitor.lost}; what they printed is in {str(directory / LOGS)!r}"
                )


@dataclass
class _Worker:
    """A process as the driver knows it."""

    rank: int
    process: "subprocess.Popen[bytes]"
    connection: Connection
    lifeline: int
    log: Path
    has_reported: bool = False
    asked_to_stop: bool = False
    has_ended: bool = False


class _Attempt:
    """The processes of one attempt, from their start until they have exited."""

    def __init__(self, job: Job, directory: Path, store: Path, number: int) -> None:
        self._job, self._directory, self._store = job, directory, store
        self._run, self._number = directory.name, number
        self._size = job.config.workers.count
        self._workers: list[_Worker] = []
        self._inbox: queue.SimpleQueue[tuple[_Worker, Message | None]] = queue.SimpleQueue()

    def run(self, monitor: RunMonitor, should_stop: Callable[[], bool]) -> None:
        """Start the workers, and transport messages until the attempt is over."""
        for rank in range(self._size):
            try:
                self._workers.append(self._start(rank))
            except OSError as error:
                raise TrainingError(f"cannot start worker {rank} of {self._size}: {error}") from error
        while not monitor.is_over:
            self._receive(monitor, timeout_s=_POLL_S)
            for kill in monitor.supervise(time.monotonic()):
                self._kill(self._workers[kill.rank])
            if should_stop():
                self._ask_to_stop()
        self._receive(monitor, timeout_s=0)

    def close(self) -> None:
        """End what still runs, and wait for it: no worker of this attempt outlives it."""
        for worker in self._workers:
            self._kill(worker)
        for worker in self._workers:
            with suppress(subprocess.TimeoutExpired):  # It waits for a disk, and ends before it runs again.
                worker.process.wait(END_S)
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
        start = WorkerStart(job, Origin(self._run, self._number, worker.rank), self._size, self._store)
        try:
            # Plain pickle: a connection's own would pass tensors by handles of this process.
            worker.connection.send_bytes(pickle.dumps(start))
            while True:
                self._inbox.put((worker, worker.connection.recv()))
        except (OSError, EOFError):
            pass  # Its process has ended.
        finally:
            self._inbox.put((worker, None))

    def _receive(self, monitor: RunMonitor, *, timeout_s: float) -> None:
        """Pass on what is in the inbox, after waiting for the first message."""
        with suppress(queue.Empty):
            self._pass_on(monitor, *self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait())
            while True:
                self._pass_on(monitor, *self._inbox.get_nowait())

    def _pass_on(self, monitor: RunMonitor, worker: _Worker, message: Message | None) -> None:
        worker.has_reported = True
        if message is None:
            origin = Origin(self._run, self._number, worker.rank)
            is_news = not (worker.has_ended or monitor.is_over)  # `_how` may take a second, and the first loss is told.
            message = Exited(origin, self._how(worker) if is_news else "")
        worker.has_ended = worker.has_ended or isinstance(message, LAST_WORDS)
        monitor.handle(message, time.monotonic())

    def _ask_to_stop(self) -> None:
        for worker in self._workers:
            if not worker.asked_to_stop and worker.has_reported:
                worker.asked_to_stop = True
                with suppress(OSError):
                    worker.connection.send("stop")

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
        if not code:
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
