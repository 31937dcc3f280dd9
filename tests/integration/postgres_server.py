"""A PostgreSQL server of our own, which can be stopped and started, and a way to it that can be cut."""

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from programs import need

SOCKET = ".s.PGSQL.5432"


class PostgresServer:
    """Listens on a socket in a temporary directory only."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        initdb = need("PostgreSQL", str(found[-1]) if found else shutil.which("initdb"))
        self.directory = Path(tempfile.mkdtemp(prefix="sightline-pg-"))  # Short, for its socket's sake.
        self._programs = Path(initdb).parent
        self._user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
        if self._user:
            shutil.chown(self.directory, "postgres")
        command = [*self._user, initdb, "-D", self._data, "-A", "trust", "-U", "postgres"]
        subprocess.run(command, check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def url(self, directory: Path | None = None) -> str:
        return f"postgresql+psycopg://postgres@/postgres?host={directory or self.directory}"

    def start(self) -> "PostgresServer":
        options = [f"-k{self.directory}", "-clisten_addresses=", "-cfsync=off"]
        command = [*self._user, self._programs / "postgres", "-D", self._data, *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ready = [self._programs / "pg_isready", "-q", "-h", self.directory]
        for _ in range(600):
            if subprocess.run(ready).returncode == 0:
                return self
            time.sleep(0.1)
        raise AssertionError("PostgreSQL does not start")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is the fast shutdown, which does not wait for clients; SIGQUIT is like a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(60)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)


class CutProxy:
    """Passes everything on between clients and a server, until a COMMIT: there it cuts the connection.

    Attributes:
        cuts: When to cut at the next COMMIT: after the server has done it ("answer"), or before it hears of it
            ("request"), so that the server does not even notice that the connection is gone ("unnoticed").
    """

    def __init__(self, server: PostgresServer) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sightline-px-"))
        self.cuts: str | None = None
        self._server = server.directory / SOCKET
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self.directory / SOCKET))
        self._listener.listen()
        self._connections: list[tuple[socket.socket, threading.Thread]] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        for server, thread in self._connections:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # Its thread ends; a socket that is closed under it would fail there.
            thread.join(10)
        self._stack.close()
        shutil.rmtree(self.directory)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._stack.enter_context(socket.socket(socket.AF_UNIX))
                server.connect(str(self._server))
                thread = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
                thread.start()
                self._connections.append((server, thread))

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client, suppress(OSError):
            while True:
                source = select.select([client, server], [], [])[0][0]
                if not (data := source.recv(1 << 16)):
                    break
                if source is client and self.cuts and b"COMMIT" in data:
                    cut, self.cuts = self.cuts, None
                    if cut == "unnoticed":
                        return
                    if cut == "answer":
                        server.sendall(data)
                        server.recv(1 << 16)
                    break
                (server if source is client else client).sendall(data)
            server.close()
