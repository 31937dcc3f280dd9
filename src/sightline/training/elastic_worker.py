"""A worker process on the driver's machine: `python -m sightline.training.elastic_worker SOCKET RUN_DIRECTORY`.

Started by torch's elastic launcher, see `elastic.py`. It talks to the driver over a socket: a heartbeat every second,
and from rank 0 everything that happens. When the driver is gone it ends, whatever it was doing.
"""

import os
import pickle
import sys
import threading
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

# All that is slow to import comes before the first heartbeat: imports let no other thread run.
from sightline.errors import SightlineError
from sightline.training.collective import LostWorkers
from sightline.training.job import Desk, work
from sightline.training.loop import Stopped
from sightline.training.precision import pick_device
from sightline.training.process_group import joined
from sightline.training.timing import peak_memory

KEY = "SIGHTLINE_DRIVER_KEY"
"""In a worker's environment: the secret that opens the driver's socket, as hexadecimal digits."""
BEAT_S = 1.0
LOST = 75
"""Exit code of a worker that lost another one: the launcher starts all of them again."""


class DriverLine:
    """The connection to the driver; sends from several threads, one message at a time."""

    def __init__(self, socket: str, rank: int) -> None:
        self._connection = Client(socket, authkey=bytes.fromhex(os.environ.pop(KEY)))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.send("hello", (rank, os.getpid()))
        self.job: Any = pickle.loads(self._connection.recv_bytes())
        self.stopping = self._stop.is_set
        threading.Thread(target=self._beat, daemon=True, name="sightline-beat").start()

    def send(self, kind: str, content: Any = None) -> None:
        """Tell the driver."""
        with self._lock:
            self._connection.send((kind, content))

    def _beat(self) -> None:
        try:
            while True:
                self.send("beat", peak_memory())
                if self._connection.poll(BEAT_S):
                    self._connection.recv()  # There is only one thing that the driver says.
                    self._stop.set()
        except (OSError, EOFError):
            os._exit(LOST)  # The driver is gone, and with it everybody who could want a result.


def main() -> None:
    """Work, and tell how it ended."""
    rank = int(os.environ["RANK"])
    line = DriverLine(sys.argv[1], rank)
    if line.job is None:
        return
    try:
        _work(line, Path(sys.argv[2]), rank)
    except LostWorkers:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(LOST)
    except Stopped:
        line.send("stopped")
    except SightlineError as error:
        line.send("failed", error)
    except BaseException:
        line.send("crashed", traceback.format_exc())
    # Threads of the loader and of gloo may be waiting for workers that have ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _work(line: DriverLine, directory: Path, rank: int) -> None:
    device = pick_device(line.job.config.train.device, index=int(os.environ["LOCAL_RANK"]))
    keeps = Desk.in_directory(directory, line.send, line.stopping)
    desk = keeps if rank == 0 else Desk(should_stop=line.stopping)
    with joined(device) as collective:
        outcome = work(line.job, collective, desk, workers_here=int(os.environ["LOCAL_WORLD_SIZE"]), device=device)
        collective.barrier()  # Nobody leaves while another may still wait for a message.
    line.send(*(("done", outcome) if rank == 0 else ("bye", None)))


if __name__ == "__main__":
    main()
