"""Targets of detections as any reader sees them: by plain SQL and the times of files, without the code that wrote them.

Also a PostgreSQL server of our own, and what it means that two targets hold the same.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow.parquet as pq
import sqlalchemy

SCORE_TOLERANCE, PIXEL_TOLERANCE = 0.01, 1.0

Box = tuple[str, float, float, float, float, float]


class Loss(Exception):
    """A promise was broken."""


class Place(Protocol):
    """An empty target, and how its rows are read without any of our own code."""

    to: str

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query over `images` and `detections`."""
        ...

    def leased(self) -> list[str]:
        """Chunks that somebody works on, or died over."""
        ...


class ParquetPlace:
    """A directory."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.to = directory, str(directory)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Place.ask`."""
        with duckdb.connect() as database:
            database.execute(f"create view images as from read_parquet('{self._directory}/images/*.parquet')")
            database.execute("create view detections as select image_id, unnest(boxes, recursive := true) from images")
            return database.execute(sql).fetchall()

    def leased(self) -> list[str]:
        """See `Place.leased`."""
        held = set()
        for file in (self._directory / "leases").glob("[0-9]*"):
            with suppress(FileNotFoundError):  # Its chunk was committed just now.
                if not file.read_bytes().startswith(b"released"):
                    held.add(file.name.rpartition(".")[0])
        return sorted(held)


class DuckDBPlace:
    """A DuckDB file, which admits one process at a time."""

    def __init__(self, file: Path) -> None:
        self.to = str(file)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Place.ask`."""
        with duckdb.connect(self.to, read_only=True) as database:
            return database.execute(sql).fetchall()

    def leased(self) -> list[str]:
        """See `Place.leased`."""
        return _leased_rows(self)


class PostgresPlace:
    """A database of its own on a server."""

    def __init__(self, server: str, name: str) -> None:
        with sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sqlalchemy.text(f"create database {name}"))
        self.to = str(sqlalchemy.make_url(server).set(database=name))
        self._engine = sqlalchemy.create_engine(self.to, poolclass=sqlalchemy.NullPool)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """See `Place.ask`."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(sql))]

    def leased(self) -> list[str]:
        """See `Place.leased`."""
        return _leased_rows(self)


def _leased_rows(place: Place) -> list[str]:
    sql = "select chunk from sightline_chunks where committed is null and owner is not null"
    for _ in range(100):
        try:
            return [name for (name,) in place.ask(sql)]
        except duckdb.IOException:  # The next driver has the file already.
            time.sleep(0.02)
        except (duckdb.CatalogException, sqlalchemy.exc.ProgrammingError):
            break  # The driver was killed before it had made its tables.
    return []


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server of our own, which listens on a socket in a temporary directory only."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        raise SystemExit("PostgreSQL is not installed: scripts/test-programs brings it when run as root")
    directory = Path(tempfile.mkdtemp(prefix="sightline-pg-"))  # Short, for its socket's sake, and open to its user.
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    if user:
        shutil.chown(directory, "postgres")
    data = directory / "data"
    subprocess.run([*user, initdb, "-D", data, "-A", "trust", "-U", "postgres"], check=True, capture_output=True)
    command = [*user, str(Path(initdb).with_name("postgres")), "-D", str(data), f"-k{directory}", "-clisten_addresses="]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (directory / ".s.PGSQL.5432").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("PostgreSQL did not start")
            time.sleep(0.1)
        yield f"postgresql+psycopg://postgres@/postgres?host={directory}"
    finally:
        server.send_signal(signal.SIGINT)  # Fast shutdown: does not wait for clients.
        server.wait(30)
        shutil.rmtree(directory)


@dataclass(frozen=True)
class Found:
    """What is in a target.

    Attributes:
        images: Status and reason of every image.
        boxes: Of the images that have some.
        chunks: How many images every chunk has.
    """

    images: dict[str, tuple[str, str | None]]
    boxes: dict[str, list[Box]]
    chunks: dict[str, int]

    @property
    def num_boxes(self) -> int:
        """Rows of `detections`."""
        return sum(len(boxes) for boxes in self.boxes.values())


def read(place: Place, files: list[Path]) -> Found:
    """All rows; raises if an image is missing, there twice, or has not the boxes that its row tells of."""
    rows = place.ask("select image_id, uri, status, reason, num_detections, chunk from images")
    times = Counter(row[0] for row in rows)
    twice = [image_id for image_id, count in times.items() if count > 1]
    missing = {str(file) for file in files} - {row[1] for row in rows}
    if twice or missing or len(rows) != len(files):
        raise Loss(
            f"{len(rows)} rows for {len(files)} images, {len(twice)} ids are there twice, {len(missing)} are missing"
        )
    boxes: dict[str, list[Box]] = {}
    for image_id, *box in place.ask("select image_id, label, score, xmin, ymin, xmax, ymax from detections"):
        boxes.setdefault(image_id, []).append((box[0], *map(float, box[1:])))
    wrong = [row[0] for row in rows if row[4] != len(boxes.get(row[0], ()))]
    if wrong or boxes.keys() - times.keys():
        raise Loss(f"{len(wrong)} images have not as many detections as their rows say, as {wrong[:3]}")
    return Found({row[0]: (row[2], row[3]) for row in rows}, boxes, dict(Counter(row[5] for row in rows)))


def compare(wanted: Found, found: Found) -> None:
    """Raise unless two runs found the same."""
    if wanted.images.keys() != found.images.keys():
        raise Loss("the ids of images differ from those of the undisturbed run")
    changed = [name for name, status in wanted.images.items() if found.images[name] != status]
    if changed:
        raise Loss(
            f"{len(changed)} images have another status or reason, as {changed[0]}: {wanted.images[changed[0]]} "
            f"without a kill, {found.images[changed[0]]} with kills"
        )
    moved = [name for name in wanted.images if not _agree(wanted.boxes.get(name, []), found.boxes.get(name, []))]
    if moved or wanted.num_boxes != found.num_boxes:
        raise Loss(
            f"boxes of {len(moved)} images differ, as {moved[:3]}: {wanted.num_boxes} and {found.num_boxes} rows"
        )


def _agree(wanted: list[Box], found: list[Box]) -> bool:
    """Whether every box has its own counterpart."""
    left = list(found)
    for box in wanted:
        match = next((other for other in left if _close(box, other)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _close(one: Box, other: Box) -> bool:
    return (
        one[0] == other[0]
        and abs(one[1] - other[1]) <= SCORE_TOLERANCE
        and all(abs(a - b) <= PIXEL_TOLERANCE for a, b in zip(one[2:], other[2:], strict=True))
    )


Commits = list[tuple[float, int]]
"""When a chunk was committed, and how many images it has; in order."""


def commits_of(directory: Path) -> Commits:
    """The chunks of a Parquet target, by the times at which their files got their names."""
    files = (directory / "images").glob("*.parquet")
    return sorted((file.stat().st_ctime, pq.read_metadata(file).num_rows) for file in files)


def rate_between(commits: Commits, share: float = 0.0) -> float:
    """Images per second from the commit that brings the images to this share, to the last commit."""
    total, done = sum(rows for _, rows in commits), 0
    for moment, rows in commits:
        done += rows
        if done >= share * total:
            return (total - done) / max(commits[-1][0] - moment, 1e-3)
    raise AssertionError("the last commit brings them to 1")
