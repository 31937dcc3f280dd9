"""Real parts: a bucket server, PostgreSQL, a browser. A missing program skips its tests, or fails them in CI:
see `tests/programs.py`.

Also models that were taught by heart, for all tests of a session.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))  # `overfitted` teaches models for benchmarks too.
sys.path.insert(0, str(Path(__file__).parent))  # `ray_nodes` and others are shared by the tests below.

from postgres_server import PostgresServer
from ray_nodes import RayCluster

from programs import need


@pytest.fixture(scope="session")
def chromium() -> str:
    return need(
        "chromium", shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )


@pytest.fixture(scope="session")
def failing_reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that lets reads fail, see `faults/eio.c`."""
    compiler = need("a C compiler", shutil.which("cc") or shutil.which("gcc"))
    library = tmp_path_factory.mktemp("faults") / "eio.so"
    source = Path(__file__).parent / "faults" / "eio.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a database on a server of our own, which listens on a socket in a temporary directory only."""
    server = PostgresServer().start()
    yield server.url()
    server.remove()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An s3:// URL on a server of our own (moto speaks S3's protocol over HTTP on loopback)."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    from pyarrow import fs

    storage = fs.S3FileSystem(
        endpoint_override=endpoint, access_key="test-key", secret_key="test-secret", allow_bucket_creation=True
    )
    name = f"pictures-{secrets.token_hex(4)}"  # The server keeps its buckets as long as the process lives.
    storage.create_dir(name)
    yield f"s3://{name}"
    server.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Three Ray nodes of one CPU each on this machine, and a head without any."""
    pytest.importorskip("ray")
    with RayCluster(3) as running:
        yield running


@pytest.fixture(scope="session")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace for models that know their images by heart; `SIGHTLINE_OVERFITTED` names one that is kept."""
    from overfitted import kept_workspace

    return kept_workspace(tmp_path_factory.mktemp("overfitted"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of an MLflow server, and the directory of all that it stores and logs."""
    place = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{place}/server.db", "--artifacts-destination", str(place / "files")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **quiet}, cwd=place, start_new_session=True
        )
    try:
        _wait_until_healthy(port, process, place / "log")
        yield port, place
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1800):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise AssertionError(log.read_text())
