"""Where the workers of a process group find each other, without a port that strangers can reach.

torch's own rendezvous listens on every interface. Workers on one machine meet through a file in a private directory;
those on several machines meet at a socket that is bound to one address. What is stored there are addresses, which
nobody unpickles.
"""

import ipaddress
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import psutil
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from sightline.errors import TrainingError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a worker waits for its peers in one call. A worker that hangs is found by its heartbeat, long before."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def loopback_environment() -> dict[str, str]:
    """Environment variables that keep the sockets of gloo and NCCL on this machine."""
    return {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}


def bind_to_address(address: str) -> None:
    """Let gloo and NCCL use only the interface that has an address; before the process group is joined."""
    if ipaddress.ip_address(address).is_loopback:
        os.environ.update(loopback_environment())
        return
    interface = interface_of(address)
    os.environ.update({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface})


def interface_of(address: str) -> str:
    """The name of the network interface that has an address."""
    interfaces = psutil.net_if_addrs()
    for name, entries in interfaces.items():
        if any(entry.address == address for entry in entries):
            return str(name)
    raise TrainingError(f"no network interface of this machine ({', '.join(interfaces)}) has the address {address}")


def file_store(path: Path, size: int) -> Store:
    """Meet through a file that only these workers can read; every attempt needs a new one."""
    store = FileStore(str(path), size)
    store.set_timeout(COLLECTIVE_TIMEOUT)
    return store


def serve_store(address: str, size: int) -> TCPStore:
    """Rank 0's end of a meeting over the network: listens at one address only, on a free port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind((address, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        address,
        port,
        size,
        is_master=True,
        timeout=COLLECTIVE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def connect_store(address: str, port: int, size: int) -> TCPStore:
    """The other ranks' end."""
    return TCPStore(address, port, size, is_master=False, timeout=COLLECTIVE_TIMEOUT, wait_for_workers=False)
