"""Python imports this in every process that has its folder on PYTHONPATH: takes things away.

Other machines cannot be reached. With SIGHTLINE_TEST_WITHOUT set, packages of these names cannot be imported.
"""

import os
import socket
from importlib.machinery import PathFinder
from typing import Any

_connect, _resolve = socket.socket.connect, socket.getaddrinfo
_find, _WITHOUT = PathFinder.find_spec, os.environ.get("SIGHTLINE_TEST_WITHOUT", "").split(",")
_HERE = ("127.", "::1", "localhost", "0.0.0.0", "::")


def _refuse_others(host: Any) -> None:
    if isinstance(host, str) and not host.startswith(_HERE) and host != socket.gethostname():
        with open(os.environ["SIGHTLINE_TEST_CALLS"], "a") as calls:
            calls.write(f"{host}\n")
        raise OSError(f"{host} cannot be reached")


def connect(self: socket.socket, address: Any) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6):
        _refuse_others(address[0])
    _connect(self, address)


def getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
    _refuse_others(host)
    return _resolve(host, *arguments, **named)


def find_spec(name: str, *arguments: Any) -> Any:
    return None if name.partition(".")[0] in _WITHOUT else _find(name, *arguments)


socket.socket.connect = connect  # type: ignore[method-assign]
socket.getaddrinfo = getaddrinfo
PathFinder.find_spec = find_spec  # type: ignore[method-assign,assignment]
