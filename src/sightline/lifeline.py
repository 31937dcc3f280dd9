"""Processes that end with the one that started them, however that ends.

The parent keeps one end of a pipe open and never uses it; the child holds the other. The kernel closes the parent's end
when the parent is gone, also after SIGKILL. (The kernel's own parent-death signal follows the thread that forked, not
the process.)
"""

import os
import threading

PARENT_LOST = 75
"""Exit code of a process whose parent is gone."""


def exit_with_parent(lifeline: int) -> None:
    """End this process at once when the other end of a pipe is closed.

    To be called before anything slow is imported: a thread waits for it, whatever the main thread does.

    Args:
        lifeline: The descriptor of the end to read from.
    """
    threading.Thread(target=_watch, args=(lifeline,), daemon=True, name="sightline-lifeline").start()


def _watch(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os._exit(PARENT_LOST)
