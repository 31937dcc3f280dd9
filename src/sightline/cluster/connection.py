"""A Ray cluster for a while: connected to, or started here and ended again; quietly."""

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from sightline.cluster.preflight import Node
from sightline.errors import ConfigError

_SETTINGS = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # For a Ray of our own; its default of 15 gives way to everything else on the machine.
}


@contextmanager
def connected(address: str | None, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """While this lasts, this process is a driver of a cluster; of the one it is connected to already, if it is.

    Args:
        address: host:port, or `auto` for the one that this machine belongs to; None starts one here.
        settings: Environment variables for Ray, here and in its workers.
    """
    os.environ.update({**_SETTINGS, **(settings or {})})
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if ray.is_initialized():
        yield
        return
    _connect(address or "local", dict(settings or {}))
    try:
        with _quiet():
            yield
    finally:
        ray.shutdown()


def list_nodes() -> list[Node]:
    """The nodes with CPUs of the cluster that this process is connected to, by the resources that Ray knows."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [
        Node(cores=node["CPU"], memory=int(node["memory"]) if "memory" in node else None, gpus=node.get("GPU", 0))
        for node in alive
        if node.get("CPU", 0) >= 1
    ]


def _connect(address: str, settings: dict[str, str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env={"env_vars": settings} if settings else None,
        )
    except ConnectionError as error:
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
