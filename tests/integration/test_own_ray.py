"""A Ray that Sightline starts, wherever temporary files are kept."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sightline.cluster.connection import _LONGEST

SCRIPT = """
import ray
from sightline.cluster.connection import connected
with connected("local"):
    print(ray.get(ray.remote(lambda: 7).remote()), ray._private.worker.global_worker.current_temp_dir)
"""


@pytest.mark.parametrize("length", [_LONGEST, 130])
def test_a_directory_for_temporary_files_with_a_long_path(length: int) -> None:
    """Sockets have short paths only: 107 bytes, of which Ray takes most for itself."""
    with tempfile.TemporaryDirectory(dir="/tmp") as outer:
        directory = Path(outer) / ("y" * (length - len(outer) - 1))
        directory.mkdir()
        assert len(os.fsencode(directory)) == length
        environment = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT],
            env={**environment, "TMPDIR": str(directory)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        answer, used = done.stdout.split()
        assert answer == "7"
        if length > _LONGEST:
            assert not Path(used).exists(), "it was removed again"
            assert list(directory.iterdir()) == []
        else:
            assert Path(used).is_relative_to(directory)
