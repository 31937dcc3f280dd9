"""A PostgreSQL server that a test may stop and start again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from programs import need


class PostgresServer:
    """Listens on a socket in a temporary directory only.

    Attributes:
        url: Of its database.
    """

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        self._initdb = need("PostgreSQL", str(found[-1]) if found else shutil.which("initdb"))
        self._user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        self._directory = Path(tempfile.mkdtemp(prefix="sightline-pg-"))  # Short, for its socket's sake.
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://postgres@/postgres?host={self._directory}"

    def __enter__(self) -> "PostgresServer":
        if self._user:
            shutil.chown(self._directory, "postgres")
        command = [*self._user, self._initdb, "-D", self._directory / "data", "-A", "trust", "-U", "postgres"]
        subprocess.run(command, check=True, capture_output=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def start(self) -> None:
        """Until it takes connections."""
        options = [f"-k{self._directory}", "-clisten_addresses=", "-cfsync=off"]
        self._process = subprocess.Popen(
            [*self._user, Path(self._initdb).with_name("postgres"), "-D", self._directory / "data", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ready = [Path(self._initdb).with_name("pg_isready"), "-q", "-h", self._directory]
        for _ in range(600):
            if subprocess.run(ready).returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError("PostgreSQL does not start")

    def stop(self) -> None:
        """At once; whoever is connected is cut off."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        self._process = None
