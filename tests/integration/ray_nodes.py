"""A Ray cluster of several nodes on this machine, whose nodes can be killed, or see less of the disk."""

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def processes() -> list[tuple[int, int, str]]:
    """Process id, parent and command line of everything that runs."""
    listing = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()[1:]]
    return [(int(pid), int(parent), command) for pid, parent, command in rows]


class RayCluster:
    """So many nodes of one CPU each, and a head without any."""

    def __init__(self, nodes: int) -> None:
        self._count = nodes

    def __enter__(self) -> "RayCluster":
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes = [self._cluster.add_node(num_cpus=1) for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def workers(self) -> list[int]:
        """Process ids of the training workers on this cluster, not on another test's."""
        running = processes()
        nodes = {pid for pid, _, command in running if "raylet/raylet" in command and self.address in command}
        return sorted(pid for pid, parent, command in running if parent in nodes and "ray::RayTrainWorker" in command)

    def wait_for_cpus(self, count: int) -> None:
        """Until nodes that somebody else starts have joined."""
        import ray

        ray.init(self.address, log_to_driver=False, logging_level="ERROR")
        try:
            deadline = time.monotonic() + 60
            while ray.cluster_resources().get("CPU", 0) < count:
                assert time.monotonic() < deadline, "the node never joined"
                time.sleep(0.2)
        finally:
            ray.shutdown()

    def lose_nodes(self) -> None:
        """End all nodes at once, as if their machines had lost power."""
        while self._nodes:
            self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def replace_node_of(self, worker: int) -> None:
        """End a worker's node at once, as if its machine had lost power, and bring up another."""
        (parent,) = (parent for pid, parent, _ in processes() if pid == worker)
        (node,) = (node for node in self._nodes if _raylet(node) == parent)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(num_cpus=1))


def _raylet(node: Any) -> int:
    (raylet,) = node.all_processes["raylet"]
    return int(raylet.process.pid)


class BlindNode:
    """A node in whose eyes a directory is empty, or holds what lies in another."""

    def __init__(self, address: str, hidden: Path, *, num_cpus: int, shown: Path | None = None) -> None:
        ray = Path(sys.executable).with_name("ray")
        start = f"{ray} start --address={address} --num-cpus={num_cpus} --block --disable-usage-stats"
        copy = f"cp -r {shlex.quote(str(shown))}/. {shlex.quote(str(hidden))} && " if shown else ""
        self._command = f"mount -t tmpfs none {shlex.quote(str(hidden))} && {copy}exec {start}"

    def __enter__(self) -> "BlindNode":
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", self._command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
