"""Which workers are refused, warned about or accepted, by cores, memory, /dev/shm and disk."""

import math

import pytest

from sightline.cluster.preflight import Demand, Node, check_disk, check_memory, check_workers, share_cpus
from sightline.errors import ConfigError

GB = 1 << 30


@pytest.mark.parametrize(
    ("workers", "cores", "memory_gb", "expected"),
    [
        (1, [2], [8], "accepted"),
        (2, [2], [8], "accepted"),
        (3, [2], [8], r"3 workers share 2 cores; --workers 2 is faster"),
        (4, [2], [8], r"4 workers share 2 cores; --workers 2 is faster"),
        (5, [2], [8], r"refused: .*5 workers .* 2 cores: give --workers 2, or --oversubscribe"),
        (99, [2], [8], r"refused: .*99 workers .* 2 cores: give --workers 2, or --oversubscribe"),
        (99, [2], [1.5], r"refused: .*give --workers 1, or --oversubscribe"),
        (99, [64], [200], r"99 workers share 64 cores; --workers 64 is faster"),
        (2, [1], [8], r"2 workers share 1 cores; --workers 1 is faster"),
        (2, [2], [2], r"refused: .*2 workers of about 1.0 GB .* 90% of the 2.0 GB .*give --workers 1, .*--oversub"),
        (2, [2], [2.3], "accepted"),
        (1, [2], [1], r"refused: .*1 workers of about 1.0 GB .* 1.0 GB .*: give a smaller --batch or --size, or --ov"),
        (4, [2, 2], [8, 8], "accepted"),
        (4, [2, 2], [8, 1], r"accepted"),
        (4, [2, 2], [2.3, 1], r"refused: .*4 workers of .* 3.3 GB .*--workers 2,"),
        (9, [1, 1, 1], [8, 8, 8], r"refused: .*9 workers .* 3 cores: give --workers 3,"),
    ],
)
def test_cores_and_memory(workers: int, cores: list[float], memory_gb: list[float], expected: str) -> None:
    """A worker takes a gigabyte."""
    nodes = [Node(own, int(memory * GB)) for own, memory in zip(cores, memory_gb, strict=True)]
    demand = Demand(workers, memory=GB)
    if expected.startswith("refused"):
        with pytest.raises(ConfigError, match=expected.partition(": ")[2]):
            check_workers(demand, nodes)
        assert check_workers(demand, nodes, oversubscribe=True), "the refusal becomes a warning"
    elif expected == "accepted":
        assert check_workers(demand, nodes) == []
    else:
        (warning,) = check_workers(demand, nodes)
        assert expected in warning


@pytest.mark.parametrize(
    ("workers", "nodes", "fit"), [(2, 1, None), (3, 1, 2), (4, 2, None), (5, 2, 4), (1, 3, None), (1, 1, None)]
)
def test_memory_that_was_measured(workers: int, nodes: int, fit: int | None) -> None:
    """Two workers of 3 GB fit into a node of 7 GB; cores do not count."""
    demand, offered = Demand(workers, memory=3 * GB), [Node(4, 7 * GB)] * nodes
    if fit is None:
        assert check_memory(demand, offered) == []
    else:
        with pytest.raises(ConfigError, match=rf"of about 3.0 GB .* {7 * nodes}.0 GB .* --workers {fit},"):
            check_memory(demand, offered)
    assert check_memory(Demand(99, memory=1), [Node(1, GB)]) == []


def test_memory_that_is_unknown_is_not_checked() -> None:
    assert check_workers(Demand(2, memory=100 * GB), [Node(2)]) == []
    assert check_workers(Demand(2), [Node(2, memory=1)]) == []


@pytest.mark.parametrize(("free", "refused"), [(None, False), (300 << 10, False), (100 << 10, True)])
def test_shared_memory(free: int | None, refused: bool) -> None:
    demand, nodes = Demand(2, shared_memory=256 << 10), [Node(2, shared_memory=free)]
    if not refused:
        assert check_workers(demand, nodes) == []
        return
    with pytest.raises(ConfigError, match=r"need 0.2 MB of /dev/shm, which has 0.1 MB free: .*--shm-size"):
        check_workers(demand, nodes)
    assert "/dev/shm" in check_workers(demand, nodes, oversubscribe=True)[0]


def test_disk() -> None:
    check_disk(3 * GB, 3 * GB, "/runs/one")
    check_disk(-GB, 0, "/runs/one")
    with pytest.raises(ConfigError, match=r"need 3.0 GB, and the disk of '/runs/one' has 1.0 GB free: .*--workspace"):
        check_disk(3 * GB, GB, "/runs/one")


@pytest.mark.parametrize(
    ("workers", "nodes", "threads", "gpus", "oversubscribe", "expected"),
    [
        (2, [Node(4)], 0, 0, False, 2),
        (4, [Node(4), Node(4)], 0, 0, False, 2),
        (3, [Node(4), Node(4)], 0, 0, False, 2),
        (2, [Node(4)], 1, 0, False, 1),
        (3, [Node(2)], 0, 0, False, 0.6666),
        (9, [Node(1)] * 3, 0, 0, True, 0.3333),
        (9, [Node(1)] * 3, 1, 0, True, 0.3333),
        (
            9,
            [Node(1)] * 3,
            1,
            0,
            False,
            "3 CPUs and 0 GPUs, room for 3 workers of 1 CPUs and 0 GPUs; 9 are .*--workers 3".replace("X", ""),
        ),
        (2, [Node(4, gpus=1)], 0, 1, False, "room for 1 workers of 2 CPUs and 1 GPUs"),
        (2, [Node(4, gpus=1)], 0, 1, True, "room for 1 workers of 2 CPUs and 1 GPUs"),
        (2, [Node(4, gpus=1)], 0, 0.5, False, 2),
        (1, [], 0, 0, True, "has 0 CPUs"),
    ],
)
def test_cpus_of_a_ray_worker(
    workers: int, nodes: list[Node], threads: int, gpus: float, oversubscribe: bool, expected: float | str
) -> None:
    demand = Demand(workers)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            share_cpus(nodes, demand, threads=threads, gpus=gpus, oversubscribe=oversubscribe)
        return
    cpus = share_cpus(nodes, demand, threads=threads, gpus=gpus, oversubscribe=oversubscribe)
    assert cpus == pytest.approx(expected)
    assert sum(math.floor(node.cores / cpus) for node in nodes) >= workers, "Ray has room for all"
