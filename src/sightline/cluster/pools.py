"""Whether the processes that read images fit the machines they would run on, decided before any of them starts."""

from collections.abc import Sequence

from sightline.cluster.local_node import local_node
from sightline.cluster.preflight import Demand, Node, check_workers
from sightline.config import Config


def check_ingest(config: Config) -> None:
    """Refuse far more processes of `ingest.workers` than this machine has cores.

    Raises:
        ConfigError: The cores cannot carry them.
    """
    demand = Demand(
        config.ingest.workers,
        kind="processes",
        option="--set ingest.workers=",
        override="--set ingest.oversubscribe=true",
    )
    check_workers(demand, [local_node()], oversubscribe=config.ingest.oversubscribe)


def check_loader(config: Config, *, workers: int = 1, nodes: Sequence[Node] | None = None) -> None:
    """Refuse far more processes of `loader.processes`, of all workers together, than there are cores.

    Args:
        nodes: Where the workers run; default: this machine.

    Raises:
        ConfigError: The cores cannot carry them.
    """
    demand = Demand(
        workers * config.loader.processes,
        kind="loader processes",
        option="--set loader.processes=",
        override="--set workers.oversubscribe=true",
        times=workers,
    )
    check_workers(demand, [local_node()] if nodes is None else nodes, oversubscribe=config.workers.oversubscribe)
