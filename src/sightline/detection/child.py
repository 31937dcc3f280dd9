"""A worker in a process of its own, for images that may kill whoever looks at them.

`python -m sightline.detection.child` is that process: it reads pickled messages of its parent, and of nobody else, from
its standard input and answers on its standard output.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from typing import IO, Any

import pyarrow as pa

from sightline.detection.pool import Died, Done, Task
from sightline.detection.setup import Setup

_END_S = 5.0


class Child:
    """A pool of one worker that may die; another is started when there is more to do."""

    size = 1

    def __init__(self, setup: Setup, *, stall_s: float) -> None:
        self._setup, self._stall_s = setup, stall_s
        self._process: subprocess.Popen[bytes] | None = None
        self._outcomes: queue.SimpleQueue[Done | Died] = queue.SimpleQueue()
        self._busy = False

    @property
    def alive(self) -> int:
        """See `Pool.alive`."""
        return int(self._process is not None and self._process.poll() is None)

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return not self._busy

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        self._busy = True
        threading.Thread(target=self._run, args=(task,), daemon=True, name="sightline-child").start()

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self._busy = False
        return [outcome]

    def close(self) -> None:
        """See `Pool.close`."""
        if self._process:
            self._process.kill()
            self._process.wait(_END_S)

    def _run(self, task: Task) -> None:
        timer = None
        try:
            process = self._started()
            timer = threading.Timer(self._stall_s, process.kill)
            timer.start()
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, (task.chunk.name, task.items))
            rows: pa.Table = _receive(process.stdout)
            self._outcomes.put(Done(task, rows))
        except (OSError, EOFError, pickle.UnpicklingError):
            self._outcomes.put(Died(task, self._how_it_died()))
        finally:
            if timer:
                timer.cancel()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "sightline.detection.child"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self._process.stdin is not None
            _send(self._process.stdin, self._setup)
        return self._process

    def _how_it_died(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        return f"its process ended by signal {-code}" if code < 0 else f"its process ended with {code}"


def _send(stream: IO[bytes], message: Any) -> None:
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    return pickle.load(stream)


def main() -> None:
    """Work for the parent until it closes the pipe."""
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What libraries print must not come between messages.
    worker = _receive(incoming).make_worker()
    while True:
        try:
            chunk, items = _receive(incoming)
        except EOFError:
            return
        _send(outgoing, worker.process(chunk, items))


if __name__ == "__main__":
    main()
