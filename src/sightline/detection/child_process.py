"""`python -m sightline.detection.child_process LIFELINE`: the process behind `Child`.

It reads pickled messages of its parent, and of nobody else, from its standard input and answers on its standard output:
`READY` when the model is loaded, then for every task how far it is (a number, while that changes) and at last its rows.
An error of Sightline's takes the place of either.
"""

import os
import pickle
import sys
from typing import IO, Any

from sightline.lifeline import exit_with_parent

READY = "ready"
_TELL_EVERY_S = 1.0


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message."""
    pickle.dump(message, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def main() -> None:
    """Work for the parent until it closes the pipe, or is gone."""
    lifeline = int(sys.argv[1])
    os.set_inheritable(lifeline, False)
    exit_with_parent(lifeline)
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What libraries print must not come between messages.
    from sightline.errors import SightlineError

    try:
        worker = pickle.load(incoming).make_worker()  # Only this imports what is slow to import.
        worker.check_model()
        send(outgoing, READY)
        while task := _next_task(incoming):
            _work(worker, *task, outgoing)
    except SightlineError as error:
        send(outgoing, error)


def _next_task(incoming: IO[bytes]) -> tuple[str, Any] | None:
    try:
        task: tuple[str, Any] = pickle.load(incoming)
        return task
    except EOFError:
        return None


def _work(worker: Any, chunk: str, items: Any, outgoing: IO[bytes]) -> None:
    from concurrent.futures import ThreadPoolExecutor, wait

    with ThreadPoolExecutor(1) as thread:
        rows, told = thread.submit(worker.process, chunk, items), worker.done
        while wait([rows], _TELL_EVERY_S).not_done:
            if worker.done != told:
                told = worker.done
                send(outgoing, told)
        send(outgoing, rows.result())


if __name__ == "__main__":
    main()
