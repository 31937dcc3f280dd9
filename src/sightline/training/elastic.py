"""Several workers on this machine, under torch's elastic launcher.

The launcher (what `torchrun` is made of) starts the processes and, when one is lost, all of them again; they go on from
the last checkpoint. This side, the driver, keeps the run: it listens to rank 0, ends a worker whose heartbeat stops,
passes on a wish to stop, and gives up when workers die without getting any further.
"""

import logging
import os
import pickle
import queue
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sightline.config import Config
from sightline.errors import TrainingError
from sightline.tracking.machine import Placement
from sightline.training.elastic_worker import KEY
from sightline.training.job import Job, Outcome
from sightline.training.keeper import RESTARTS, Keeper
from sightline.training.loop import Stopped
from sightline.training.placement import local_placement

LOGS = "logs"
_LOOK_EVERY_S = 0.2
_END_S = 10.0
"""How long workers may take to end after the run is over, before they are killed."""


class ElasticLauncher:
    """Trains with several processes on this machine; rank 0 keeps checkpoints in the run's directory."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def placement(self) -> Placement:
        """How the run is spread."""
        return local_placement(self._config, workers=self._config.workers.count, launcher="torchrun")

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end."""
        driver = _Driver(job, directory, keeper)
        try:
            return driver.run()
        finally:
            driver.close()


@dataclass
class _Worker:
    """A process as the driver knows it."""

    rank: int
    pid: int
    connection: Connection
    heard: float = field(default_factory=time.monotonic)
    told_to_stop: bool = False


class _Driver:
    def __init__(self, job: Job, directory: Path, keeper: Keeper) -> None:
        self._job, self._directory, self._keeper = job, directory, keeper
        self._wanted = job.config.workers.count
        self._workers: dict[int, _Worker] = {}
        self._inbox: queue.SimpleQueue[tuple[_Worker, str, Any]] = queue.SimpleQueue()
        self._over_since: float | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="sightline-")
        key = secrets.token_bytes(32)
        self._listener = Listener(str(Path(self._folder.name) / "driver"), authkey=key, backlog=64)
        self._agent = threading.Thread(target=self._launch, args=(key.hex(),), daemon=True, name="sightline-agent")

    def run(self) -> Outcome:
        """Until the workers have ended, one way or another."""
        threading.Thread(target=self._accept, daemon=True, name="sightline-accept").start()
        with _quiet_launcher():
            self._agent.start()
            while self._agent.is_alive():
                self._hear()
                self._look_after_workers()
            while self._workers:  # Each connection ends with a last word.
                self._hear()
        if self._error:
            raise self._error
        if self._outcome is None:
            raise TrainingError(f"the workers ended without a result; what they printed is in {self._logs!r}")
        return self._outcome

    def close(self) -> None:
        """Leave no process behind."""
        self._be_over()
        while self._agent.is_alive():
            self._kill_all()
            self._agent.join(_LOOK_EVERY_S)
            with suppress(queue.Empty):
                while True:
                    worker, word, _ = self._inbox.get_nowait()
                    if word == "gone" and self._workers.get(worker.rank) is worker:
                        del self._workers[worker.rank]
        self._listener.close()
        self._folder.cleanup()

    @property
    def _logs(self) -> str:
        return str(self._directory / LOGS)

    def _launch(self, key: str) -> None:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._wanted,
            run_id=self._directory.name,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=RESTARTS,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=self._logs, redirects=Std.ALL),
        )
        command = ("-m", "sightline.training.elastic_worker", str(self._listener.address), str(self._directory))
        with _environment(**{KEY: key}):
            while not self._over_since:
                saves = self._keeper.saves
                try:
                    elastic_launch(config, sys.executable)(*command)
                    return
                except ChildFailedError as error:
                    if self._keeper.saves == saves:  # They died once more than the launcher starts them again.
                        self._end(self._given_up(error))
                except Exception as error:  # In a thread: whoever waits for the run raises it.
                    self._end(error)

    def _accept(self) -> None:
        """Greet workers as they come."""
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                if self._over_since:
                    return
                continue
            threading.Thread(target=self._listen, args=(connection,), daemon=True, name="sightline-listen").start()

    def _listen(self, connection: Connection) -> None:
        """Put what a worker says into the inbox, until its end."""
        worker = None
        with suppress(OSError, EOFError):
            _, (rank, pid) = connection.recv()
            weights = self._job.weights if rank == 0 else None
            over = self._over_since is not None
            # Plain pickle: a connection's own would pass tensors by handles of this process.
            connection.send_bytes(pickle.dumps(None if over else replace(self._job, weights=weights)))
            if over:
                return
            worker = _Worker(rank, pid, connection)
            self._workers[rank] = worker
            while True:
                kind, content = connection.recv()
                worker.heard = time.monotonic()
                self._inbox.put((worker, kind, content))
        if worker is not None:
            self._inbox.put((worker, "gone", None))
            connection.close()

    def _hear(self) -> None:
        with suppress(queue.Empty):
            self._heed(*self._inbox.get(timeout=_LOOK_EVERY_S))
            self._hear_the_rest()

    def _hear_the_rest(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._heed(*self._inbox.get_nowait())

    def _heed(self, worker: _Worker, kind: str, content: Any) -> None:
        match kind:
            case "beat":
                self._keeper.on_memory(worker.rank, content)
            case "done":
                self._outcome = content
                self._be_over()
            case "bye":  # It ended before rank 0 could say that the run is done; it was not lost.
                self._workers.pop(worker.rank, None)
            case "stopped":
                self._end(Stopped())
            case "failed":
                self._end(content)
            case "crashed":
                self._end(TrainingError(f"worker {worker.rank} failed:\n{content}"))
            case "gone":
                self._lose(worker)
            case _:
                self._keeper.hear(kind, content)
        self._keeper.on_workers(len(self._workers), self._wanted)

    def _end(self, error: BaseException) -> None:
        self._error = self._error or error
        self._be_over()

    def _given_up(self, error: ChildFailedError) -> TrainingError:
        rank, failure = error.get_first_failure()
        return TrainingError(
            f"workers died {RESTARTS + 1} times without a new checkpoint in between, the last time rank {rank} with "
            f"exit code {failure.exitcode} (-9: out of memory?); what they printed is in {self._logs!r}"
        )

    def _be_over(self) -> None:
        """From now on, workers that come have nothing to do."""
        self._over_since = self._over_since or time.monotonic()

    def _lose(self, worker: _Worker) -> None:
        if self._workers.get(worker.rank) is not worker:
            return
        everybody = len(self._workers) == self._wanted
        del self._workers[worker.rank]
        if self._over_since or not everybody:
            return  # The first to go is the one that was lost; the others follow it.
        self._keeper.on_lost(f"worker {worker.rank} was lost")

    def _look_after_workers(self) -> None:
        """End workers that give no sign of life, and tell all of them once when they are to stop."""
        now, patience = time.monotonic(), self._job.config.workers.hang_after_s
        if self._over_since and now - self._over_since > _END_S:
            self._kill_all()
        for worker in list(self._workers.values()):
            if now - worker.heard > patience:
                self._keeper.note(f"worker {worker.rank} gave no sign of life for {now - worker.heard:.0f} s: ended")
                worker.heard = now
                _kill(worker.pid)
        if self._keeper.should_stop():
            for worker in list(self._workers.values()):
                if not worker.told_to_stop:
                    worker.told_to_stop = True
                    with suppress(OSError):
                        worker.connection.send("stop")

    def _kill_all(self) -> None:
        for worker in list(self._workers.values()):
            _kill(worker.pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Variables for processes started meanwhile."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


@contextmanager
def _quiet_launcher() -> Iterator[None]:
    """The driver tells of lost workers in its own words."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
