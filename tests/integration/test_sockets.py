"""No launcher or pool that we start can be reached from another machine, and none runs the code of a stranger."""

import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from commands import Command
from sockets import Listening, machine_address, watched
from torch.distributed import TCPStore

import sightline

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own.

STORE_KEYS = ("torch.rendezvous.{run}", "store_based_barrier_key:1", "0", "default_pg/0//cpu//0/0")
"""What torch's rendezvous and process groups keep in a store; the first is what its elastic agent unpickled."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("workspace")
    sightline.synth("shapes", "shapes", images=20, seed=1, workspace=place)
    return place


class Exploit:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def attack(listening: Listening, mark: Path, run: str) -> None:
    """Write a pickle wherever a store answers: on loopback, and on the machine's own address."""
    payload = pickle.dumps(Exploit(mark))
    for host in filter(None, ("127.0.0.1", machine_address())):
        for port in sorted(listening.ports):
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((host, port)):
                    continue
            assert host == "127.0.0.1", f"{host}:{port} answers"
            try:
                store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False)
                for key in STORE_KEYS:
                    store.set(key.format(run=run), payload)
            except RuntimeError:
                pass  # It is no store.


@pytest.mark.parametrize(
    ("launcher", "workers", "sockets"),
    [("inline", "1", 0), ("local", "2", 2), pytest.param("ray", "2", 5, marks=pytest.mark.slow)],
)
def test_training(workspace: Path, tmp_path: Path, launcher: str, workers: str, sockets: int) -> None:
    """The exploit that ran code through torch's rendezvous, against every launcher."""
    mark = tmp_path / "code ran"
    command = Command(workspace, f"audit-{launcher}", "--workers", workers, "--launcher", launcher)
    process = command.start().process
    assert process is not None
    with watched(process) as listening:
        command.wait_for_checkpoint()
        attack(listening, mark, command.run.name)
        time.sleep(2)
        command.finish()
    assert listening.exposed == []
    assert len(listening.ports) >= sockets, "the sockets were there to be seen"
    assert not mark.exists()


@pytest.fixture(scope="module")
def model(workspace: Path) -> str:
    run = sightline.train("shapes", workspace=workspace, model="nano", epochs=1, size=64, threads=1)
    return run.name


@pytest.mark.parametrize(("workers", "sockets"), [("1", 0), pytest.param("2", 5, marks=pytest.mark.slow)])
def test_detection(workspace: Path, model: str, workers: str, sockets: int) -> None:
    command = [sys.executable, "-m", "sightline", "detect", model, "shapes", "--workers", workers]
    command += ["--to", f"audit-{workers}", "--workspace", str(workspace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with watched(process) as listening:
        text = process.communicate(timeout=300)[0]
    assert process.returncode == 0, text
    assert listening.exposed == []
    assert len(listening.ports) >= sockets


STRANGER = """
import sys, ray
ray.init(sys.argv[1], logging_level="ERROR")
ray.get(ray.remote(lambda mark: open(mark, "w").close()).remote(sys.argv[2]))
"""


@pytest.fixture
def own_ray() -> Iterator[str]:
    """The address of a cluster as our commands start it."""
    ray = pytest.importorskip("ray")
    from sightline.cluster.connection import connected

    with connected("local"):
        yield ray.get_runtime_context().gcs_address


def test_a_ray_of_ours_wants_its_token(own_ray: str, tmp_path: Path) -> None:
    """The same code with the token runs, so that the test can fail."""
    assert own_ray.startswith("127.0.0.1:")
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    home = {**without, "HOME": str(tmp_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # It reaches loopback.
    for environment, runs in (
        (home, False),
        ({**home, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}, True),
    ):
        mark = tmp_path / f"ran-{runs}"
        stranger = subprocess.Popen(
            [sys.executable, "-c", STRANGER, own_ray, str(mark)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            stranger.wait(60 if runs else 15)
        except subprocess.TimeoutExpired:
            stranger.kill()
            stranger.wait()
        assert mark.exists() is runs


def test_the_users_own_ray_is_left_as_it_was(tmp_path: Path) -> None:
    """Neither a token in the home directory nor a variable is left behind: both change how others are reached."""
    pytest.importorskip("ray")
    script = """
import os
before = dict(os.environ)
from sightline.cluster.connection import connected
with connected(None):
    assert os.environ["RAY_AUTH_MODE"] == "token"
after = {name for name, value in os.environ.items() if before.get(name) != value}
print("left:", sorted(name for name in after if "AUTH" in name or "CLUSTER" in name))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    told = subprocess.run(
        [sys.executable, "-c", script], env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert re.search(r"left: \[\]", told.stdout), told.stderr
    assert not (tmp_path / ".ray").exists()
