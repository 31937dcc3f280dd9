"""A worker on the driver's machine: `python -m sightline.training.local_worker RUN_DIRECTORY RANK MESSAGES LIFELINE`.

Started by `local_launcher`. The last two arguments are descriptors that it inherits: a socket on which it talks to the
driver (a heartbeat every second, and from rank 0 everything that happens), and a pipe that closes with the driver.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError, Stopped
from sightline.lifeline import exit_with_parent
from sightline.training.heartbeat import Activity
from sightline.training.messages import (
    Alive,
    Crashed,
    Failed,
    Finished,
    Interrupted,
    Message,
    Origin,
    Outcome,
    PeerLost,
)

if TYPE_CHECKING:
    from sightline.training.job import Job

BEAT_S = 1.0
_TERMINATE_S = 5.0
"""After SIGTERM a worker waits this long for the driver's request to stop: schedulers signal all processes of a job."""
LOST = 75
"""Exit code of a worker that lost its peers; the driver starts all of them again."""


@dataclass(frozen=True)
class WorkerStart:
    """What a worker is given when it starts.

    Attributes:
        origin: Which worker of which attempt it is.
        store: The file through which the workers of this attempt meet.
    """

    job: "Job"
    origin: Origin
    size: int
    store: Path


class DriverConnection:
    """The connection to the driver; sends from several threads, one message at a time."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._terminated: float | None = None
        self.activity = Activity()
        self.start: WorkerStart = pickle.loads(self._connection.recv_bytes())
        self.stopping = self._stop.is_set
        threading.Thread(target=self._beat, daemon=True, name="sightline-heartbeat").start()

    def send(self, message: Message) -> None:
        """Send the driver a message."""
        with self._lock:
            self._connection.send(message)

    def terminate(self, *_: Any) -> None:
        """Handle SIGTERM: end, unless the driver wants the run to be saved first."""
        self._terminated = self._terminated or time.monotonic()

    def _beat(self) -> None:
        from sightline.training.timing import peak_memory

        try:
            while True:
                self.send(Alive(self.start.origin, self.activity.beat(peak_memory())))
                if self._connection.poll(BEAT_S):
                    self._connection.recv()  # The driver sends nothing but the request to stop.
                    self._stop.set()
                if self._terminated and time.monotonic() - self._terminated > _TERMINATE_S and not self.stopping():
                    os._exit(128 + signal.SIGTERM)
        except (OSError, EOFError):
            os._exit(LOST)  # The driver is gone.


def main() -> None:
    """Train, and report how it ended."""
    directory, _rank, messages, lifeline = Path(sys.argv[1]), *(int(text) for text in sys.argv[2:5])
    for descriptor in (messages, lifeline):
        os.set_inheritable(descriptor, False)
    exit_with_parent(lifeline)
    # Only now what is slow to import, and all of it before the first heartbeat: imports let no other thread run.
    import sightline.training.job
    import sightline.training.process_group  # noqa: F401
    from sightline.training.collective import WorkerLostError

    driver = DriverConnection(messages)
    origin = driver.start.origin
    signal.signal(signal.SIGTERM, driver.terminate)
    try:
        driver.send(Finished(origin, _work(driver, directory)))
    except WorkerLostError as error:
        traceback.print_exc()
        driver.send(PeerLost(origin, str(error)))
    except Stopped:
        driver.send(Interrupted(origin))
    except SightlineError as error:
        driver.send(Failed(origin, error))
    except BaseException:
        driver.send(Crashed(origin, traceback.format_exc()))
    # Threads of the loader and of gloo may still wait for workers that have ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _work(driver: DriverConnection, directory: Path) -> Outcome | None:
    from sightline.training.context import WorkerContext, run_context
    from sightline.training.job import work
    from sightline.training.precision import place_worker
    from sightline.training.process_group import joined
    from sightline.training.rendezvous import file_store

    start = driver.start
    job, rank, size = start.job, start.origin.rank, start.size
    device, backend = place_worker(job.config.train.device, local_rank=rank, workers_here=size)
    if rank == 0:
        context = run_context(directory, start.origin.attempt, send=driver.send, should_stop=driver.stopping)
    else:
        context = WorkerContext(start.origin, should_stop=driver.stopping)
    context.activity = driver.activity
    store = file_store(start.store, size)
    with joined(backend, store, rank=rank, size=size, activity=context.activity) as collective:
        outcome = work(job, collective, context, workers_here=size, device=device)
        collective.barrier()  # No worker leaves while another may still wait for a message.
    return outcome if rank == 0 else None


if __name__ == "__main__":
    main()
