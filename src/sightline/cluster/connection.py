"""A Ray cluster for a while: connected to, or started here and ended again; quietly.

A cluster that is started here listens on loopback only, and whoever talks to it must have its token, which lies in a
file that only this user can read. Ray itself would listen on every interface, and would keep the token in the user's
home, where its mere presence changes how the user's other clusters are reached.
"""

import logging
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import ray

from sightline.cluster.address import RAY_ADDRESS, find_cluster
from sightline.cluster.preflight import Node
from sightline.errors import ConfigError

_SETTINGS = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # For a Ray of our own; its default of 15 gives way to everything else on the machine.
}
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray takes 127.0.0.1 for the node's address, as it does by default on other systems, and binds to that."""
_SHORT = "/tmp"
_LONGEST = 35
"""Bytes of a directory under which Ray can make a socket: its name is 70 bytes long, and macOS allows 103 in all."""


@contextmanager
def connected(address: str | None, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """While this lasts, this process is a driver of a cluster; of the one it is connected to already, if it is.

    Args:
        address: host:port, or `auto` for the one that this machine belongs to, or `local` to start one here. None takes
            the one that RAY_ADDRESS names, else starts one here.
        settings: Environment variables for Ray, here and in its workers.
    """
    os.environ.update({**_SETTINGS, **(settings or {})})
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield
        return
    address = address or find_cluster() or "local"
    with _private_cluster() if address == "local" else nullcontext() as directory:
        _connect(address, dict(settings or {}), directory)
        try:
            with _quiet():
                yield
        finally:
            ray.shutdown()


@contextmanager
def _private_cluster() -> Iterator[str | None]:
    """While this lasts, a cluster that this process starts is reached from this machine, with our token, only.

    Yields:
        Where Ray is to keep its sockets and logs; None for its own choice.
    """
    from ray._private import ray_constants

    with tempfile.TemporaryDirectory(prefix="sightline-ray-") as private, _short_directory() as directory:
        token = Path(private) / "token"
        with open(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        values = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), _LOOPBACK: "0"}
        # Ray reads the last one when it is imported, which may have been long ago.
        before, clustered = (
            _swap_environment(values, drop=("RAY_AUTH_TOKEN", RAY_ADDRESS)),
            ray_constants.ENABLE_RAY_CLUSTER,
        )
        ray_constants.ENABLE_RAY_CLUSTER = False
        _read_authentication_again()
        try:
            yield directory
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = clustered
            _swap_environment(before)
            _read_authentication_again()


@contextmanager
def _short_directory() -> Iterator[str | None]:
    """A directory for Ray's sockets where the one that it would take has too long a path; None where it has not."""
    usual = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or _SHORT
    if len(os.fsencode(usual)) <= _LONGEST:
        yield None
        return
    try:
        short = tempfile.TemporaryDirectory(prefix="ray-", dir=_SHORT, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"Ray cannot make its sockets in {usual!r}, whose path is longer than {_LONGEST} bytes, nor in {_SHORT!r} "
            f"({error}): set RAY_TMPDIR to a directory with a shorter path"
        ) from None
    with short as directory:
        yield directory


def _swap_environment(values: Mapping[str, str | None], drop: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Set variables, or remove those that are None; returns what they were."""
    values = {**dict.fromkeys(drop), **values}
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _read_authentication_again() -> None:
    """Ray keeps mode and token of the first cluster that a process has talked to."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def list_nodes() -> list[Node]:
    """The nodes with CPUs of the cluster that this process is connected to, by the resources that Ray knows."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [
        Node(cores=node["CPU"], memory=int(node["memory"]) if "memory" in node else None, gpus=node.get("GPU", 0))
        for node in alive
        if node.get("CPU", 0) >= 1
    ]


def _connect(address: str, settings: dict[str, str], directory: str | None) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env={"env_vars": settings} if settings else None,
            _temp_dir=directory,
        )
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r} ({error}): is it up? Without --address one is started here"
        ) from None
    # Ray puts its own in front, which prints a trace and has been seen to end the process by a fault of memory.
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints what its daemons say to standard output, pages of it when a node dies, and has no setting for that."""
    from ray._private import worker

    spoken: Any = getattr(worker, "print_to_stdstream", None)
    if spoken is None:
        yield
        return
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = spoken
