"""Memory that is available: of the machine, or of the cgroups around this process."""

from pathlib import Path

import pytest

from sightline.cluster.local_node import available_memory, current_nodes, local_node

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "available"),
    [
        pytest.param({}, 8_192_000, id="no cgroup"),
        pytest.param({"proc/self/cgroup": "0::/\n", f"{V2}/cgroup.procs": ""}, 8_192_000, id="v2, the root"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/\n",
                f"{V2}/memory.max": "4000000\n",
                f"{V2}/memory.current": "1500000\n",
                f"{V2}/memory.stat": "anon 1\ninactive_file 500000\n",
            },
            3_000_000,
            id="v2, a container: page cache counts as free",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/user/job\n",
                f"{V2}/user/job/memory.max": "max\n",
                f"{V2}/user/job/memory.current": "10\n",
                f"{V2}/user/memory.max": "1000\n",
                f"{V2}/user/memory.current": "200\n",
            },
            800,
            id="v2, the limit of the group around it",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n0::/\n",
                f"{V1}/job/memory.limit_in_bytes": "5000\n",
                f"{V1}/job/memory.usage_in_bytes": "6000\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712\n",
                f"{V1}/memory.usage_in_bytes": "6000\n",
            },
            0,
            id="v1, more than it may",
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], available: int) -> None:
    assert available_memory(write(tmp_path, files)) == available


def test_this_machine() -> None:
    node = local_node()
    assert node.cores >= 1
    assert node.memory is not None
    assert node.memory > 1 << 20
    assert [found.cores for found in current_nodes()] == [node.cores]
