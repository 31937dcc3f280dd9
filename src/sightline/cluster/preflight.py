"""Whether the workers of a run or job fit the nodes they would run on, decided before any of them starts.

Only decisions: `local_node` measures this machine, `connection.list_nodes` asks a Ray cluster, and `training/preflight`
and `detection/preflight` estimate what a worker needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sightline.errors import ConfigError

MOST_WORKERS_PER_CORE = 2
MEMORY_SHARE = 0.9
"""Share of the available memory that workers may be expected to take; the rest is for everything else."""
PROCESS_MEMORY = 400 << 20
"""Private bytes of a worker process that has imported torch and everything else, but has no model yet."""
_RAY_CPU_UNIT = 10_000  # Ray counts CPUs in steps of 1/10,000.


@dataclass(frozen=True)
class Node:
    """What one machine has to offer.

    Attributes:
        memory: Bytes that new processes can take; None if unknown.
        shared_memory: Free bytes in /dev/shm; None if unknown.
    """

    cores: float
    memory: int | None = None
    gpus: float = 0
    shared_memory: int | None = None


@dataclass(frozen=True)
class Demand:
    """What the workers of a run or job need.

    Attributes:
        workers: On all nodes together.
        memory: Bytes of one worker; 0 if not estimated yet.
        shared_memory: Bytes of /dev/shm that the workers of one node need together.
        option: What sets the number of workers, for messages.
        remedy: What makes a worker smaller, for messages.
        kind: What they are, for messages.
        override: What starts them in spite of a refusal, for messages.
        times: How many there are for each that the option asks for.
    """

    workers: int
    memory: int = 0
    shared_memory: int = 0
    option: str = "--workers"
    remedy: str = "a smaller --batch or --size"
    kind: str = "workers"
    override: str = "--oversubscribe"
    times: int = 1


def check_workers(demand: Demand, nodes: Sequence[Node], *, oversubscribe: bool = False) -> list[str]:
    """Refuse workers that the nodes cannot carry.

    Args:
        oversubscribe: Whether the user wants to start them anyway; refusals become warnings then.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: Too many workers for the cores, the memory or /dev/shm.
    """
    refusals = [_cores_refusal(demand, nodes), _memory_refusal(demand, nodes), _shared_memory_refusal(demand, nodes)]
    warnings = _refuse(refusals, oversubscribe=oversubscribe)
    cores = _total_cores(nodes)
    if not warnings and demand.workers > cores:
        return [f"warning: {demand.workers} {demand.kind} share {cores:g} cores; {_advice(demand, nodes)} is faster"]
    return warnings


def check_memory(demand: Demand, nodes: Sequence[Node], *, oversubscribe: bool = False) -> list[str]:
    """The part of `check_workers` about memory, for when it was measured rather than estimated."""
    return _refuse([_memory_refusal(demand, nodes)], oversubscribe=oversubscribe)


def check_disk(needed: int, free: int, directory: str) -> None:
    """Refuse a run whose checkpoints do not fit its disk.

    Raises:
        ConfigError: There is less free space than needed.
    """
    if free < needed:
        raise ConfigError(
            f"the checkpoints of this run need {_size_text(needed)}, and the disk of {directory!r} has "
            f"{_size_text(free)} free: free some space, or give another --workspace"
        )


def share_cpus(nodes: Sequence[Node], demand: Demand, *, threads: int, gpus: float, oversubscribe: bool) -> float:
    """CPUs to reserve for each worker on a Ray cluster, a fraction where workers outnumber cores.

    Args:
        threads: CPUs that the user wants for a worker; 0 shares out all there are.
        gpus: GPUs of a worker.

    Raises:
        ConfigError: The cluster has no room for all workers, so that Ray would wait forever.
    """
    workers = demand.workers
    smallest = min((node.cores for node in nodes), default=0)
    per_node = -(-workers // max(len(nodes), 1))
    wanted = threads or max(1, int(smallest // per_node))
    gpu_places = [int(node.gpus // gpus) if gpus else workers for node in nodes]
    places = sum(min(int(node.cores // wanted), on_gpus) for node, on_gpus in zip(nodes, gpu_places, strict=True))
    if places >= workers:
        return wanted
    if nodes and sum(gpu_places) >= workers and (oversubscribe or not threads):
        return int(smallest / per_node * _RAY_CPU_UNIT) / _RAY_CPU_UNIT
    raise ConfigError(
        f"the Ray cluster has {_total_cores(nodes):g} CPUs and {sum(node.gpus for node in nodes):g} GPUs, room for "
        f"{places} workers of {wanted} CPUs and {gpus:g} GPUs; {workers} are wanted: give {demand.option} "
        f"{max(1, places)}, fewer threads, or --oversubscribe to let workers share CPUs"
    )


def _refuse(refusals: Sequence[str | None], *, oversubscribe: bool) -> list[str]:
    found = [refusal for refusal in refusals if refusal]
    if found and not oversubscribe:
        raise ConfigError(found[0])
    return [f"warning: {refusal}" for refusal in found]


def _cores_refusal(demand: Demand, nodes: Sequence[Node]) -> str | None:
    cores = _total_cores(nodes)
    if demand.workers <= MOST_WORKERS_PER_CORE * cores:
        return None
    return (
        f"{demand.workers} {demand.kind} are more than {MOST_WORKERS_PER_CORE} for each of {cores:g} cores: give "
        f"{_advice(demand, nodes)}, or {demand.override} to start them anyway"
    )


def _memory_refusal(demand: Demand, nodes: Sequence[Node]) -> str | None:
    room = _room_in_memory(demand, nodes)
    if room is None or demand.workers <= room:
        return None
    available = sum(node.memory or 0 for node in nodes)
    fewer = f"{_advice(demand, nodes)}, " if room else ""
    return (
        f"{demand.workers} workers of about {_size_text(demand.memory)} do not fit into {MEMORY_SHARE:.0%} of the "
        f"{_size_text(available)} of memory that are available: give {fewer}{demand.remedy}, or "
        "--oversubscribe to start them anyway"
    )


def _shared_memory_refusal(demand: Demand, nodes: Sequence[Node]) -> str | None:
    free = min((node.shared_memory for node in nodes if node.shared_memory is not None), default=demand.shared_memory)
    if free >= demand.shared_memory:
        return None
    return (
        f"{demand.workers} workers need {_size_text(demand.shared_memory)} of /dev/shm, which has {_size_text(free)} "
        "free: remove files from it, give the container a larger one (docker run --shm-size), or give --oversubscribe"
    )


def _advice(demand: Demand, nodes: Sequence[Node]) -> str:
    """The option with the number of workers to advise: one for each core, as far as memory goes."""
    room = _room_in_memory(demand, nodes)
    cores = int(_total_cores(nodes))
    fitting = max(1, (cores if room is None else min(cores, room)) // demand.times)
    return f"{demand.option}{'' if demand.option.endswith('=') else ' '}{fitting}"


def _room_in_memory(demand: Demand, nodes: Sequence[Node]) -> int | None:
    """Workers that fit into memory; None if that is unknown."""
    if not demand.memory or any(node.memory is None for node in nodes):
        return None
    return sum(int(MEMORY_SHARE * (node.memory or 0) // demand.memory) for node in nodes)


def _total_cores(nodes: Sequence[Node]) -> float:
    return sum(node.cores for node in nodes)


def _size_text(size: int) -> str:
    return f"{size / (1 << 30):.1f} GB" if size >= 100 << 20 else f"{size / (1 << 20):.1f} MB"
