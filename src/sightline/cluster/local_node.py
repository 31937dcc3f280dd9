"""What this machine, or the container around this process, has to offer."""

import os
import shutil
import sys
import time
from pathlib import Path

from sightline.cluster.preflight import Node
from sightline.data.parallel import num_cores

_SHARED_MEMORY = Path("/dev/shm")


def local_node() -> Node:
    """This machine, now. GPUs are left out: to count them takes torch."""
    shared = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None
    return Node(cores=num_cores(), memory=available_memory(), shared_memory=shared)


def current_nodes() -> list[Node]:
    """The nodes of the Ray cluster that this process is connected to, else this machine."""
    ray = sys.modules.get("ray")  # Whoever is connected has imported it.
    if ray is None or not ray.is_initialized():
        return [local_node()]
    from sightline.cluster.connection import list_nodes

    return list_nodes()


def busy_cores(*, interval_s: float = 0.3) -> float:
    """How many cores other processes keep busy, measured over a moment; 0 where the kernel does not say.

    Not the load average: that remembers the last minute, in which the user's previous run may have been all the load.
    """
    before, own_before = _busy_s(_read(Path("/proc/stat"))), time.process_time()
    began = time.monotonic()
    time.sleep(interval_s)
    elapsed = time.monotonic() - began
    busy = _busy_s(_read(Path("/proc/stat"))) - before - (time.process_time() - own_before)
    return max(0.0, busy / elapsed)


def _busy_s(stat: str) -> float:
    """Seconds that all cores together have been busy, from the text of /proc/stat."""
    if not stat:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(ticks) for ticks in stat.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that new processes can take before the kernel kills some: of the machine, or less in a cgroup.

    Args:
        root: Where /proc and /sys are.
    """
    return min([_of_machine(root), *_of_cgroups(root)])


def _of_machine(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # Not Linux: all there is.


def _of_cgroups(root: Path) -> list[int]:
    """What is left in each cgroup of this process that has a limit, version 1 or 2, its own and those around it."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, limit, usage, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        own = Path(path.lstrip("/"))
        for group in (root / base / part for part in (own, *own.parents)):
            limited, used = _read(group / limit), _read(group / usage)
            if limited.isdecimal() and used.isdecimal():
                left.append(max(0, int(limited) - int(used) + _stat(group, cache)))
    return left


def _stat(group: Path, name: str) -> int:
    """A line of memory.stat; the page cache in it is given back when memory runs short."""
    found = (line.split() for line in _read(group / "memory.stat").splitlines())
    return next((int(value) for key, value in found if key == name), 0)


def _read(path: Path) -> str:
    """A file of the kernel's; empty where there is none, as on other systems."""
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
