"""Whether this process belongs to a Ray cluster already; without importing Ray."""

import os
import sys
from collections.abc import Mapping

RAY_ADDRESS = "RAY_ADDRESS"
"""Set by `ray job submit`, by KubeRay's jobs, and by users."""


def find_cluster(environment: Mapping[str, str] = os.environ) -> str | None:
    """The address of the cluster that the environment names, or "connected" where this process has joined one.

    An address with http:// is that of the jobs API, at which no process can join.
    """
    ray = sys.modules.get("ray")
    if ray is not None and getattr(ray, "is_initialized", lambda: False)():
        return "connected"
    address = environment.get(RAY_ADDRESS) or None
    return None if address and address.startswith(("http://", "https://")) else address
