"""Run a function over a stream of tasks on all cores, results in the order of the tasks, memory bounded."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain, islice
from typing import Any, TypeVar

from sightline.errors import SightlineError
from sightline.lifeline import exit_with_owner

Result = TypeVar("Result")

_AHEAD = 2
"""Tasks in flight for each worker: one at work, one waiting."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_order(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]], *, workers: int = 0
) -> Iterator[Result]:
    """Yield `function(*task)` for each task, in order.

    A single task, or a single worker, runs in this process. Otherwise processes do the work; they are started without
    importing the caller's main module again, so scripts need no `__main__` guard.

    Args:
        workers: Number of processes; 0 means one for each core.
    """
    workers = workers or num_cores()
    stream = iter(tasks)
    first = list(islice(stream, 2))
    if workers == 1 or len(first) < 2:
        for task in chain(first, stream):
            yield function(*task)
        return
    yield from _run_in_processes(function, chain(first, stream), workers)


def _run_in_processes(
    function: Callable[..., Result], tasks: Iterator[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    lifeline, ours = multiprocessing.Pipe(duplex=False)
    pool = ProcessPoolExecutor(max_workers=workers, initializer=exit_with_owner, initargs=(lifeline,))
    pending: deque[Future[Result]] = deque()
    try:
        for task in islice(tasks, workers * _AHEAD):
            pending.append(pool.submit(function, *task))
        while pending:
            result = pending.popleft().result()
            for task in islice(tasks, 1):
                pending.append(pool.submit(function, *task))
            yield result
    except TerminatedWorkerError as error:
        raise SightlineError(
            f"a worker process died ({error.args[0].splitlines()[0]}): it ran out of memory or an image crashed the "
            "decoder; try again with --set ingest.workers=1 to see which"
        ) from None
    finally:
        pool.shutdown(kill_workers=True)
        lifeline.close()
        ours.close()
