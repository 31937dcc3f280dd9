"""Which process wrote something, and whether it is known to be dead.

A process id means something within one PID namespace of one boot of one machine, and only while the process lives:
containers share names of hosts, and ids are used again. So a process is named by all of these and by its start time.
Where they cannot be known (there is no `/proc` on macOS), no process is ever known to be dead.
"""

import hashlib
import os
import platform
import re
import secrets
from pathlib import Path

_PROC = Path("/proc")
_UNKNOWN = "unknown-0"
_NAME = re.compile(r"([0-9a-f]+-\d+)-(\d+)-[0-9a-f]+")


def this_host() -> str:
    """Where the id of this process means this process only: a hash of boot and namespace, and its start time."""
    try:
        if str((_PROC / "self").readlink()) != str(os.getpid()):
            return _UNKNOWN  # A `/proc` of another namespace, whose ids mean other processes.
        return f"{_namespace()}-{_start(os.getpid())}"
    except (OSError, ValueError):
        return _UNKNOWN


def is_dead(host: str, pid: int) -> bool:
    """Whether a process is known to have ended: it ran where this one runs, and is no more.

    Args:
        host: What `this_host` was in that process.
    """
    here, there = this_host(), host.rpartition("-")
    if here == _UNKNOWN or here.rpartition("-")[0] != there[0]:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # Somebody else's, and alive.
    try:
        return _start(pid) != there[2]
    except (OSError, ValueError):
        return False  # It ended just now, or what it is doing is hidden from other users.


def unique_name() -> str:
    """A name for a file that only this process writes, from which others can tell whether it still lives."""
    return f"{this_host()}-{os.getpid()}-{secrets.token_hex(6)}"


def is_abandoned(name: str) -> bool:
    """Whether the process that made up a name is known to be dead; false for names that none made up."""
    found = _NAME.fullmatch(name)
    return found is not None and is_dead(found[1], int(found[2]))


def _namespace() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii")
    text = f"{boot} {(_PROC / 'self/ns/pid').readlink()} {platform.node()}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def _start(pid: int) -> str:
    """In clock ticks since the boot: field 22, counted from behind the command, which may have spaces."""
    status = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    return str(int(status.rpartition(")")[2].split()[19]))
