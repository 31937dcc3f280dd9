"""Processes that end with the one that started them, however that ends.

The parent keeps one end of a pipe open and never uses it; the child holds the other. The kernel closes the parent's end
when the parent is gone, also after SIGKILL. (The kernel's own parent-death signal follows the thread that forked, not
the process.)
"""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

PARENT_LOST = 75
"""Exit code of a process whose parent is gone."""


def exit_with_parent(lifeline: int) -> None:
    """End this process at once when the other end of a pipe is closed.

    To be called before anything slow is imported: a thread waits for it, whatever the main thread does.

    Args:
        lifeline: The descriptor of the end to read from.
    """
    threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="sightline-lifeline").start()


def exit_with_owner(lifeline: Connection) -> None:
    """The same for a process of a pool, to which the reading end of a pipe is passed as an argument."""
    exit_with_parent(os.dup(lifeline.fileno()))  # The connection itself may be closed when it is collected.


def exit_with_parent_process() -> None:
    """The same for a process of `multiprocessing`, whose own pipe to the process that asked for it serves here.

    Under the start method forkserver that is not the process that forked, which `os.getppid` would name.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_join, args=(parent,), daemon=True, name="sightline-lifeline").start()


def _watch(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os._exit(PARENT_LOST)


def _join(parent: BaseProcess) -> None:
    parent.join()
    os._exit(PARENT_LOST)
