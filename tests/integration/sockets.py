"""Which sockets a command and everything that it started listen on, while it runs."""

import ipaddress
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil


@dataclass
class Listening:
    """What was seen listening: addresses with their ports, by the name of the program."""

    seen: set[tuple[str, str, int]] = field(default_factory=set)

    @property
    def exposed(self) -> list[str]:
        """Sockets that other machines could reach."""
        return sorted(f"{name} {address}:{port}" for name, address, port in self.seen if not _is_loopback(address))

    @property
    def ports(self) -> set[int]:
        return {port for _, _, port in self.seen}

    def look(self, root: psutil.Process) -> None:
        """Add what a process and its descendants listen on now."""
        try:
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                name, sockets = process.name(), process.net_connections("inet")
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            self.seen |= {(name, one.laddr.ip, one.laddr.port) for one in sockets if one.status == psutil.CONN_LISTEN}


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


@contextmanager
def watched(process: "subprocess.Popen[str]") -> Iterator[Listening]:
    """Look ten times a second, until the block ends."""
    listening, over = Listening(), threading.Event()
    root = psutil.Process(process.pid)

    def watch() -> None:
        while not over.wait(0.1):
            listening.look(root)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield listening
    finally:
        over.set()
        thread.join()


def machine_address() -> str | None:
    """An address of this machine that is not loopback; None if it has no network."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family.name == "AF_INET" and not _is_loopback(entry.address):
                return str(entry.address)
    return None
