"""A worker in a process of its own, for images that may kill whoever looks at them; `child_process` is that process."""

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from sightline.detection.child_process import READY, send
from sightline.detection.pool import START_S, Died, Done, StallTimer, Task
from sightline.detection.worker_spec import WorkerSpec
from sightline.errors import BrokenModelError, SightlineError, WorkerError

_END_S = 5.0
_KEPT_BYTES = 4096
_SHOWN_LINES = 5


class Child:
    """A pool of one worker that may die; another is started when there is more to do."""

    size = 1

    def __init__(self, spec: WorkerSpec, *, stall_s: float) -> None:
        self._spec, self._stall_s, self._timer = spec, stall_s, StallTimer()
        self._process: _Process | None = None
        self._outcomes: queue.SimpleQueue[Done | Died | BaseException] = queue.SimpleQueue()
        self._busy = False

    @property
    def alive(self) -> int:
        """See `Pool.alive`."""
        return int(self._process is not None and self._process.is_alive())

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return not self._busy

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        self._busy = True
        self._timer.restart()
        threading.Thread(target=self._run, args=(task,), daemon=True, name="sightline-child").start()

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        try:
            outcome = self._outcomes.get(timeout=timeout_s)
        except queue.Empty:
            self._end_if_stalled(timeout_s)
            return []
        self._busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return [outcome]

    def close(self) -> None:
        """See `Pool.close`."""
        if self._process:
            self._process.close()
            self._process = None

    def _end_if_stalled(self, waited_s: float) -> None:
        process = self._process
        if self._busy and process:
            limit_s = self._stall_s if process.heard else max(self._stall_s, START_S)
            quiet_s = self._timer.wait(process.heard, waited_s)
            if quiet_s > limit_s + _END_S:
                raise WorkerError(f"a process got nowhere for {limit_s:g} s and cannot be ended: a disk hangs, perhaps")
            if quiet_s > limit_s:
                process.end(f"it got nowhere for {limit_s:g} s")

    def _run(self, task: Task) -> None:
        try:
            self._outcomes.put(self._outcome(task))
        except BaseException as error:  # In a thread: whoever waits decides.
            self._outcomes.put(error)

    def _outcome(self, task: Task) -> Done | Died:
        process = self._started()
        try:
            return Done(task, process.ask((task.chunk.name, task.items)))
        except _Ended:
            return Died(task, process.how_it_ended(lines=1))
        except BrokenModelError as error:  # It worked when the process started: one of these images broke it.
            self._process = None
            process.close()
            return Died(task, str(error))

    def _started(self) -> "_Process":
        if self._process is not None:
            if self._process.is_alive():
                return self._process
            self._process.close()
            self._process = None
        try:
            process = self._process = _Process()
        except OSError as error:
            raise WorkerError(f"a process for images that are tried apart cannot be started: {error}") from error
        try:
            answer = process.ask(self._spec)
        except _Ended:
            raise WorkerError(
                "a process for images that are tried apart ended before it had loaded the model: "
                f"{process.how_it_ended(lines=_SHOWN_LINES)}"
            ) from None
        assert answer == READY
        return process


class _Ended(Exception):
    """The process is gone."""


class _Process:
    """A process that answers.

    Attributes:
        heard: How often it said something: an answer, or that it gets on.
    """

    def __init__(self) -> None:
        self.heard, self._why = 0, ""
        # A file, not a pipe: nobody has to read it, and it cannot be full. Both processes share its position.
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it.
        reads, self._lifeline = os.pipe()
        try:
            # -P: no module that lies in the current directory is imported in place of another.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sightline.detection.child_process", str(reads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                pass_fds=(reads,),
                start_new_session=True,  # Ctrl-C is for the parent.
            )
        except OSError:
            os.close(self._lifeline)
            self._printed.close()
            raise
        finally:
            os.close(reads)
        assert self._process.stdin
        assert self._process.stdout
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: Any) -> Any:
        """The answer to a message.

        Raises:
            _Ended: There will be none.
            SightlineError: What the process raised.
        """
        self._printed.seek(0)
        self._printed.truncate()  # What it printed over earlier messages is of no interest any more.
        try:
            send(self._to, message)
            while isinstance(answer := pickle.load(self._from), int):
                self.heard += 1
        except (OSError, EOFError, pickle.UnpicklingError):
            raise _Ended from None
        self.heard += 1
        if isinstance(answer, SightlineError):
            raise answer
        return answer

    def end(self, why: str) -> None:
        self._why = why
        self._process.kill()

    def how_it_ended(self, *, lines: int) -> str:
        """In a sentence, with the last lines that it printed."""
        code = self._process.wait()
        ended = f"its process ended by signal {-code}" if code < 0 else f"its process ended with {code}"
        size = os.fstat(self._printed.fileno()).st_size
        printed = os.pread(self._printed.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES)).decode("utf-8", "replace")
        last = [line.strip() for line in printed.splitlines() if line.strip()][-lines:]
        return ": ".join(filter(None, (self._why or ended, " | ".join(last))))

    def close(self) -> None:
        self._process.kill()
        os.close(self._lifeline)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return  # It waits for a disk, and ends before it runs again.
        for stream in (self._to, self._from, self._printed):
            with suppress(OSError):  # A message that nobody will read may still be to be written.
                stream.close()
