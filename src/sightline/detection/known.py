"""Which images a plan has, on disk rather than in memory: there may be a hundred million of them."""

import sqlite3
from collections.abc import Iterator
from itertools import groupby

import pyarrow as pa

from sightline.detection.item import Item
from sightline.detection.schema import REJECTED, UNREAD

_CACHE_KB = 32 << 10


class Known:
    """Ids in a temporary SQLite database: a file without a name, gone when it is closed."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(
            f"pragma journal_mode=off; pragma synchronous=off; pragma cache_size=-{_CACHE_KB};"
            "create table known (id text primary key, version text, chunk text, retry int, listed int) without rowid;"
            "create table again (chunk text, id text, uri text, version text, ref text);"
        )

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def add(self, plan: pa.Table) -> None:
        """Images of a generation."""
        for batch in plan.select(["image_id", "version"]).to_batches():
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            self._db.executemany("insert or ignore into known values (?, ?, null, 0, 0)", rows)

    def add_committed(self, batch: pa.RecordBatch, *, retry: str) -> None:
        """Images that were looked at: `image_id`, `version`, `chunk`, `status`, `stage`.

        Args:
            retry: Which rejected ones are to be looked at again: "unread", "rejected" (all), or "none".
        """
        ids, versions, chunks, statuses, stages = (
            batch.column(name).to_pylist() for name in ("image_id", "version", "chunk", "status", "stage")
        )
        again = [
            status == REJECTED and (retry == "rejected" or (retry == "unread" and stage == UNREAD))
            for status, stage in zip(statuses, stages, strict=True)
        ]
        self._db.executemany(
            "insert or replace into known values (?, ?, ?, ?, 0)", zip(ids, versions, chunks, again, strict=True)
        )

    def chunks_to_retry(self) -> set[str]:
        """Chunks with images that are to be looked at again though they have not changed."""
        return {chunk for (chunk,) in self._db.execute("select distinct chunk from known where retry")}

    def is_new(self, item: Item) -> bool:
        """Whether no generation has the image; from now on one has. One that is to be done again is noted."""
        found = self._db.execute(
            "select version, chunk, retry, listed from known where id = ?", (item.image_id,)
        ).fetchone()
        if found is None:
            self._db.execute("insert into known values (?, ?, null, 0, 1)", (item.image_id, item.version))
            return True
        version, chunk, retry, listed = found
        if listed:  # Twice in one listing, in two versions perhaps: the first one counts.
            return False
        self._db.execute("update known set listed = 1 where id = ?", (item.image_id,))
        if chunk is not None and (retry or version != item.version):
            row = (chunk, item.image_id, item.uri, item.version, item.ref)
            self._db.execute("insert into again values (?, ?, ?, ?, ?)", row)
        return False

    def again(self) -> Iterator[tuple[str, tuple[Item, ...]]]:
        """Chunks with the images in them that are to be looked at again; they are told once."""
        rows = self._db.execute("select chunk, id, uri, version, ref from again order by chunk")
        for chunk, items in groupby(rows, key=lambda row: row[0]):
            yield chunk, tuple(Item(*row[1:]) for row in items)
        self._db.execute("delete from again")
