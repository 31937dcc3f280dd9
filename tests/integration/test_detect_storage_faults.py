"""`sightline detect` over sources, and into targets, that fail for a while: a disk, a mount, a bucket, a database.

Nothing that results from the fault is committed, and when it is over the same command ends with the rows of a run that
nothing disturbed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.fs
import pytest
import sqlalchemy
import torch
from commands import FAULTS
from postgres_server import PostgresServer

from programs import need_mounts
from sightline.data.decode import encode_jpeg
from sightline.models.bundle import describe, save_bundle
from sightline.models.factory import make_model

COUNT = 60
TIMEOUT_S = 300


def photo(number: int) -> bytes:
    return encode_jpeg(np.random.default_rng(number).integers(0, 255, (64, 80, 3), np.uint8))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees things everywhere, and photos, one of which is none."""
    place = tmp_path_factory.mktemp("detect")
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
    info = describe(model, name="nano", classes=("circle", "square", "triangle"), score_threshold=0.1)
    save_bundle(place / "model", model.state_dict(), info, {})
    (place / "photos").mkdir()
    for number in range(COUNT):
        (place / "photos" / f"{number:03}.jpg").write_bytes(photo(number))
    (place / "photos" / "007.jpg").write_bytes(b"\xff\xd8\xff broken")
    return place


class Command:
    """The real command, in a process of its own."""

    def __init__(self, place: Path, source: str, name: str, *options: str) -> None:
        self._images = place / "ws" / "detections" / name / "images"
        self.command = [sys.executable, "-m", "sightline", "detect", str(place / "model"), source, "--to", name]
        self.command += ["-w", str(place / "ws"), "--engine", "torch", "--json", *options]
        self.command += ["--set", "detect.threads=1", "--set", "detect.chunk=2"]
        self.process: subprocess.Popen[str] | None = None

    def start(self, *, inside: str = "", give_up_s: float | None = None, **environment: str) -> "Command":
        """Start it; `inside` is a shell command that runs before it, in namespaces of its own."""
        if give_up_s is not None:
            environment |= {"PYTHONPATH": str(FAULTS), "SIGHTLINE_TEST_GIVE_UP_S": str(give_up_s)}
        apart = ["unshare", "--mount", "sh", "-c", f'{inside} && exec "$@"', "sh"] if inside else []
        self.process = subprocess.Popen(
            [*apart, *self.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        return self

    def num_committed(self) -> int:
        return len(list(self._images.glob("*.parquet"))) if self._images.exists() else 0

    def wait_for(self, reached: Callable[[], object]) -> "Command":
        deadline = time.monotonic() + TIMEOUT_S
        assert self.process is not None
        while not reached():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.005)
        return self

    def finish(self) -> dict[str, Any]:
        """What an undisturbed end says."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0, err
        return json.loads(out)  # type: ignore[no-any-return]

    def fail(self) -> str:
        """Wait for an end that is the user's to mend; what was said."""
        assert self.process is not None
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 3, err
        return err

    def rows(self) -> dict[str, Any]:
        """Status, reason and rounded boxes by the name of the image; every image has one row."""
        query = f"select uri, status, reason, boxes from read_parquet('{self._images}/*.parquet')"
        rows = duckdb.sql(query).fetchall()
        assert len({row[0] for row in rows}) == len(rows)
        return {
            row[0].rpartition("/")[2]: (*row[1:3], [(box["label"], round(box["score"], 4)) for box in row[3]])
            for row in rows
        }

    def reasons(self) -> set[str | None]:
        return {reason for _, reason, _ in self.rows().values()}


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, Any]:
    """What an undisturbed run finds."""
    command = Command(place, str(place / "photos"), "undisturbed").start()
    command.finish()
    assert len(command.rows()) == COUNT
    return command.rows()


@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_cannot_be_read(
    place: Path, expected: dict[str, Any], failing_reads: Path, tmp_path: Path, lasting: bool
) -> None:
    flag = tmp_path / "eio"
    faults = {
        "LD_PRELOAD": str(failing_reads),
        "SIGHTLINE_TEST_EIO": str(flag),
        "SIGHTLINE_TEST_EIO_BELOW": str(place / "photos"),
    }
    command = Command(place, str(place / "photos"), f"eio-{lasting}")
    command.start(give_up_s=1.0 if lasting else None, **faults).wait_for(command.num_committed)
    flag.touch()
    command.wait_for((tmp_path / "eio.log").exists)
    if lasting:
        assert "Input/output error" in command.fail()
        assert command.reasons() <= {None, "unreadable image header", "broken image"}
        assert len(command.rows()) < COUNT
        command.start()
    else:
        time.sleep(2)
        flag.unlink()
    command.finish()
    assert command.rows() == expected


def test_a_machine_whose_disk_is_not_mounted_joins(place: Path, expected: dict[str, Any]) -> None:
    """It takes chunks of the plan of another run, gives them back, and ends with an error."""
    mount = f"mount -t tmpfs none {place / 'photos'}"
    need_mounts()
    first = Command(place, str(place / "photos"), "joined").start()
    first.wait_for(first.num_committed)
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(0.2)  # What was under way in the kernel is done.
        before = first.num_committed()
        second = Command(place, str(place / "photos"), "joined").start(inside=mount, give_up_s=1.0)
        message = second.fail()
        assert "missing or empty on this machine: is it mounted?" in message
        assert first.num_committed() == before, "nothing was committed"
    finally:
        first.process.send_signal(signal.SIGCONT)
    first.finish()
    assert first.rows() == expected


class Proxy(ThreadingHTTPServer):
    """Stands before a bucket, and says for a while that the credentials have expired.

    With `unlisted`, they allow to read objects, not to list them: S3 does not say then which are not there.
    """

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.behind, self.expired, self.unlisted, self.refused = behind, False, False, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class ProxyHandler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        if self.server.expired:
            self.server.refused += 1
            self.reply(400, {"Content-Type": "application/xml"}, EXPIRED)
            return
        if self.server.unlisted and self.path.strip("/").count("/") == 0:
            self.reply(403, {"Content-Type": "application/xml"}, DENIED)
            return
        asked = urllib.request.Request(self.server.behind + self.path, None, dict(self.headers), method=self.command)
        try:
            with urllib.request.urlopen(asked, timeout=60) as found:
                self.reply(found.status, dict(found.headers), found.read())
        except urllib.error.HTTPError as error:
            with error:
                code, body = (403, DENIED) if self.server.unlisted else (error.code, error.read())
                self.reply(code, dict(error.headers), body)

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" and status < 300 else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *_: Any) -> None:
        """Nothing."""


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@pytest.fixture
def proxy(place: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Before a bucket with the photos."""
    storage, path = pyarrow.fs.FileSystem.from_uri(bucket)
    pyarrow.fs.copy_files(str(place / "photos"), f"{path}/photos", pyarrow.fs.LocalFileSystem(), storage)
    with Proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        yield proxy
        proxy.shutdown()


@pytest.mark.parametrize("kind", ["folder", "list"])
@pytest.mark.parametrize("lasting", [False, True])
def test_credentials_of_a_bucket_that_expire(
    place: Path, expected: dict[str, Any], bucket: str, proxy: Proxy, tmp_path: Path, kind: str, lasting: bool
) -> None:
    names = [f"{bucket}/photos/{file.name}" for file in sorted((place / "photos").iterdir())]
    (tmp_path / "list.txt").write_text("\n".join(names))
    source = f"{bucket}/photos" if kind == "folder" else str(tmp_path / "list.txt")
    command = Command(place, source, f"bucket-{kind}-{lasting}")
    command.start(give_up_s=1.0 if lasting else None).wait_for(command.num_committed)
    proxy.expired = True
    command.wait_for(lambda: proxy.refused)
    if lasting:
        assert "run the same command" in command.fail()
        assert command.reasons() <= {None, "unreadable image header", "broken image"}
        assert len(command.rows()) < COUNT
        proxy.expired = False
        command.start()
    else:
        time.sleep(2)
        proxy.expired = False
    command.finish()
    assert command.rows() == expected


def test_an_object_that_is_missing_where_objects_cannot_be_listed(
    place: Path, expected: dict[str, Any], bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    """It is forbidden then, as everything is when credentials are no longer valid: the others tell the two apart."""
    names = [file.name for file in sorted((place / "photos").iterdir())]
    listed = ["absent.jpg", *names[:20], "gone.jpg", *names[20:]]
    (tmp_path / "list.txt").write_text("\n".join(f"{bucket}/photos/{name}" for name in listed))
    proxy.unlisted = True
    command = Command(place, str(tmp_path / "list.txt"), "bucket-unlisted").start(give_up_s=5.0)
    command.finish()
    rows = command.rows()
    for name in ("absent.jpg", "gone.jpg"):
        assert rows.pop(name)[:2] == ("rejected", "file not readable")
    assert rows == expected


@pytest.mark.parametrize("lasting", [False, True])
def test_a_database_that_is_restarted(place: Path, expected: dict[str, Any], lasting: bool) -> None:
    with PostgresServer() as server:
        engine = sqlalchemy.create_engine(server.url())
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("create table photos (name text, image bytea)"))
            rows = [{"n": file.name, "i": file.read_bytes()} for file in (place / "photos").iterdir()]
            connection.execute(sqlalchemy.text("insert into photos values (:n, :i)"), rows)
        engine.dispose()
        options = ["--query", "select * from photos order by name", "--set", "source.key=name"]
        command = Command(place, server.url(), f"database-{lasting}", *options)
        command.start(give_up_s=1.0 if lasting else None).wait_for(command.num_committed)
        server.stop()
        if lasting:
            assert "the database refused" in command.fail()
            assert command.reasons() <= {None, "unreadable image header", "broken image"}
            assert len(command.rows()) < COUNT
            server.start()
            command.start()
        else:
            time.sleep(2)
            server.start()
        command.finish()
    found = {name.rpartition("#")[2]: row for name, row in command.rows().items()}
    assert found == expected


class IntoDatabase(Command):
    """A command whose rows go into PostgreSQL."""

    def __init__(self, place: Path, source: str, server: PostgresServer) -> None:
        super().__init__(place, source, server.url())
        self._engine = sqlalchemy.create_engine(server.url(), poolclass=sqlalchemy.NullPool)

    def _ask(self, sql: str) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text(sql)))

    def num_committed(self) -> int:
        if self._ask("select to_regclass('images')")[0][0] is None:
            return 0
        return int(self._ask("select count(*) from images")[0][0])

    def rows(self) -> dict[str, Any]:
        images = self._ask("select image_id, uri, status, reason from images")
        boxes: dict[str, list[tuple[str, float]]] = {image_id: [] for image_id, *_ in images}
        assert len(boxes) == len(images)
        for image_id, label, score in self._ask("select image_id, label, score from detections"):
            # PostgreSQL gives the shortest decimals of a single-precision number.
            boxes[image_id].append((label, round(float(np.float32(score)), 4)))
        return {row[1].rpartition("/")[2]: (*row[2:], boxes[row[0]]) for row in images}


@pytest.mark.parametrize("lasting", [False, True])
def test_a_target_that_is_restarted(place: Path, expected: dict[str, Any], lasting: bool) -> None:
    with PostgresServer() as server:
        command = IntoDatabase(place, str(place / "photos"), server)
        command.start(give_up_s=1.0 if lasting else None).wait_for(command.num_committed)
        server.stop()
        if lasting:
            assert "run the same command" in command.fail()
            server.start()
            assert 0 < command.num_committed() < COUNT
            command.start()
        else:
            time.sleep(2)
            server.start()
        command.finish()
        found = command.rows()
    assert {name: (*row[:2], sorted(row[2])) for name, row in found.items()} == {
        name: (*row[:2], sorted(row[2])) for name, row in expected.items()
    }
