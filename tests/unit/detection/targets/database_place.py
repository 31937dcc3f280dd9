"""A database of detections for tests, and processes that write to one.

Run as a program it is such a process: `database_place.py commit PLACE NAME COUNT` or `… forever PLACE NAME 0`.
"""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from sightline.detection.schema import IMAGES
from sightline.detection.targets.database import DatabaseTarget
from sightline.detection.targets.duckdb_file import DuckDBFile
from sightline.detection.targets.sqlalchemy_database import SQLDatabase
from sightline.detection.targets.target import Owner
from sightline.process_identity import this_host

T = TypeVar("T")

HERE = this_host()
ANN, BEN = Owner("ann", "elsewhere", 1), Owner("ben", "elsewhere", 2)
HOSTILE = 'it\'s "quoted"; drop table images; -- :job %s %(x)s $1 {y} \\ \\:z\nnew line ☃ 𝄞'
HOSTILE_PREFIX = "a\"b';:job %s$1\\:\n☃ {x}"


class Place:
    """A database by its URL or file; every target has connections of its own."""

    def __init__(self, name: str, stack: contextlib.ExitStack) -> None:
        self.name, self._stack = name, stack

    def target(self, job: str = "one", *, prefix: str = "", is_open: bool = True) -> DatabaseTarget:
        target = DatabaseTarget(connector(self.name), prefix=prefix)
        self._stack.callback(target.close)
        if is_open:
            target.open({"id": job})
        return target

    def sql(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        found = connector(self.name)
        try:
            with found.transaction() as transaction:
                return transaction.execute(sql, **values)
        finally:
            found.close()

    def process(self, verb: str, name: str, count: int) -> "subprocess.Popen[str]":
        command = [sys.executable, __file__, verb, self.name, name, str(count)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


def connector(name: str) -> DuckDBFile | SQLDatabase:
    return DuckDBFile(Path(name)) if name.endswith(".duckdb") else SQLDatabase(name)


def images(chunk: str, ids: list[str], *, boxes: int = 2, status: str = "ok", **more: Any) -> pa.Table:
    label, score = more.pop("label", "bolt"), more.pop("score", 0.1)
    box = {"label": label, "score": score, "xmin": 1.5, "ymin": 2.0, "xmax": 3.25, "ymax": 4.0}
    row = {"uri": "/photos/a.jpg", "status": status, "num_detections": boxes, "boxes": [box] * boxes, "version": "v"}
    row |= {"chunk": chunk, "model": "boards", "model_version": "3", **more}
    return pa.Table.from_pylist([{**row, "image_id": image_id} for image_id in ids], schema=IMAGES)


def rows_of(target: DatabaseTarget, *columns: str, status: str | None = None) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in target.rows(columns, status=status) for row in batch.to_pylist()]


def boxes_of(target: DatabaseTarget, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in target.detections(columns) for row in batch.to_pylist()]


def at_once(*tasks: Callable[[], T]) -> list[T]:
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], T]) -> T:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, tasks))


def main(verb: str, name: str, prefix: str, count: int) -> None:
    target = DatabaseTarget(connector(name))
    target.open({"id": "one"})
    number = 0
    while verb == "forever" or number < count:
        chunk = f"{prefix}{number}"
        owner = Owner(prefix, HERE, 0)
        assert target.claim([chunk], owner, lease_s=60) == {chunk: 1}
        assert target.commit(chunk, images(chunk, [f"{chunk}-{image}" for image in range(100)], boxes=3), owner)
        sys.stdout.write("done\n")
        sys.stdout.flush()
        number += 1
    target.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
