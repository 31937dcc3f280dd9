"""Detections in a database: what all kinds have in common, in portable SQL.

What differs between them is in a connector: `duckdb_file` and `sqlalchemy_database`.
"""

import json
import random
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from sightline.detection.chunk_hash import ChunkHashes, hash_ids
from sightline.detection.schema import IMAGES
from sightline.detection.targets.chunk_table import ChunkTable, CommittedChunk, listed_values
from sightline.detection.targets.connector import Collision, Connector, Query, Transaction, Unreachable
from sightline.detection.targets.tables import DETECTION_ROWS, GENERATION_ROWS, JOB_ROWS, Tables, stored_rows
from sightline.detection.targets.target import Owner, StoredChunk, Summary, refuse_newer
from sightline.detection.targets.totals import summarize
from sightline.errors import StorageError
from sightline.retry import STORAGE_RETRY
from sightline.secrets import redact_values

T = TypeVar("T")

_BATCH_ROWS = 10_000
_TRIES = 5


class DatabaseTarget:
    """The detections of one job in a database.

    Args:
        prefix: What the names of all tables begin with.
    """

    def __init__(self, connector: Connector, *, prefix: str = "") -> None:
        self._connector, self._job = connector, ""
        self._tables = Tables(connector, prefix)
        self._chunks = ChunkTable(self._tables.chunks, self._job)
        self._was_reached = False

    @property
    def location(self) -> str:
        """Without credentials."""
        return self._connector.location

    def open(self, job: dict[str, Any]) -> None:
        """Make the tables, and enter the job; both may be there already."""
        self._run(self._tables.make_missing)
        self._job = job["id"]
        self._chunks = ChunkTable(self._tables.chunks, self._job)
        row = {"id": self._job, "description": json.dumps(redact_values(job), sort_keys=True)}

        def enter(transaction: Transaction) -> None:
            if not transaction.execute(f"select id from {self._tables.jobs} where id = :job", job=self._job):
                transaction.insert(self._tables.jobs, pa.Table.from_pylist([row], schema=JOB_ROWS))

        self._run(enter)
        refuse_newer(self._run(self._chunks.row_format), self.location)

    def generation(self, number: int) -> bytes | None:
        """A part of the plan, if it has been published."""
        sql = f"select plan from {self._tables.generations} where job = :job and number = :number"
        found = self._run(lambda transaction: transaction.execute(sql, job=self._job, number=number))
        return bytes(found[0][0]) if found else None

    def publish(self, number: int, plan: bytes) -> bool:
        """Add a part to the plan; the first one of its number stays, and may be this one if an answer was lost."""
        row = pa.Table.from_pylist([{"job": self._job, "number": number, "plan": plan}], schema=GENERATION_ROWS)
        sql = f"select plan from {self._tables.generations} where job = :job and number = :number"

        def add(transaction: Transaction) -> bool:
            if found := transaction.execute(sql, job=self._job, number=number):
                return bytes(found[0][0]) == plan
            transaction.insert(self._tables.generations, row)
            return True

        return self._run(add)

    def committed(self) -> set[str]:
        """Names of the chunks whose rows are there."""
        return self._run(self._chunks.committed)

    def claim(self, chunks: Sequence[str], owner: Owner, *, lease_s: float) -> dict[str, int]:
        """Lease chunks that are free; for those that were got, how often they have been leased with this time."""
        return self._run(lambda transaction: self._chunks.claim(transaction, chunks, owner, lease_s))

    def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
        """Make own leases last for as long again from now."""
        if chunks:
            self._run(lambda transaction: self._chunks.renew(transaction, chunks, owner, lease_s))

    def release(self, chunks: Collection[str], owner: Owner) -> None:
        """Give own leases back; this attempt does not count, earlier ones do."""
        if chunks:
            self._run(lambda transaction: self._chunks.release(transaction, chunks, owner))

    def commit(self, chunk: str, rows: pa.Table, owner: Owner) -> bool:
        """Add the rows of a chunk, all or none; false if another run was first."""
        images, detections = stored_rows(self._job, chunk, rows)  # Before others have to wait for the transaction.
        ids = hash_ids(rows.column("image_id").to_pylist())

        def add(transaction: Transaction) -> bool:
            if not self._chunks.mark_committed(transaction, chunk, ids, owner):
                found = self._chunks.find(transaction, chunk)
                return found is not None and found.writer == owner.token
            transaction.insert(self._tables.images, images)
            transaction.insert(self._tables.detections, detections)
            return True

        return self._run(add)

    def rewrite(self, chunk: str, rows: pa.Table, owner: Owner, *, revision: int) -> bool:
        """Put new rows in place of those of the same images, in one step, if the chunk is at this revision."""
        images, detections = stored_rows(self._job, chunk, rows)
        ids, writer = images.column("image_id").to_pylist(), f"{owner.token}.{secrets.token_hex(8)}"

        def replace(transaction: Transaction) -> bool:
            if not self._chunks.mark_rewritten(transaction, chunk, revision, writer=writer, owner=owner):
                found = self._chunks.find(transaction, chunk)
                return found is not None and found.writer == writer  # It was done, and the answer was lost.
            for some, listed in listed_values(ids):
                for table in (self._tables.images, self._tables.detections):
                    sql = f"delete from {table} where job = :job and image_id in ({listed})"
                    transaction.execute(sql, job=self._job, **some)
            transaction.insert(self._tables.images, images)
            transaction.insert(self._tables.detections, detections)
            return True

        return self._run(replace)

    def stored(self) -> Iterator[StoredChunk]:
        """All committed chunks; the rows of those of the first format are read for their ids."""
        sql = f"select chunk, count(*) from {self._tables.images} where job = :job group by chunk"

        def read(transaction: Transaction) -> tuple[list[CommittedChunk], dict[str, int]]:
            chunks = self._chunks.all(transaction)
            return chunks, {chunk: int(count) for chunk, count in transaction.execute(sql, job=self._job)}

        chunks, counts = self._run(read)
        old = {chunk.name for chunk in chunks if chunk.ids is None}
        computed = self._hash_rows(old) if old else {}
        for chunk in chunks:
            ids = chunk.ids or computed.get(chunk.name, hash_ids(()))
            yield StoredChunk(chunk.name, ids, chunk.revision, counts.get(chunk.name, 0))

    def _hash_rows(self, chunks: set[str]) -> dict[str, str]:
        hashes = ChunkHashes()
        for batch in self.rows(("chunk", "image_id")):
            for chunk, image_id in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if chunk in chunks:
                    hashes.add(chunk, image_id)
        return hashes.to_dict()

    def read_chunk(self, chunk: str, columns: Sequence[str]) -> tuple[int, pa.Table]:
        """The revision of a committed chunk, and some scalar columns of its rows at that revision."""
        schema = pa.schema([IMAGES.field(name) for name in columns])
        query = Query(self._tables.images, schema, "job = :job and chunk = :chunk", "image_id")

        def read(transaction: Transaction) -> tuple[int, pa.Table]:
            before = self._chunks.find(transaction, chunk)
            rows = transaction.select(query, job=self._job, chunk=chunk)
            if before != self._chunks.find(transaction, chunk):
                raise Collision(f"chunk {chunk!r} in {self.location!r} changed while it was read")
            if before is None:
                raise StorageError(f"chunk {chunk!r} in {self.location!r} has no rows")
            return before.revision, rows

        return self._run(read)

    def rows(self, columns: Sequence[str], *, status: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some scalar columns of `images` of this job, by image id.

        Every page is a query of its own: no connection, and no lock on a file, is held while the caller works.
        """
        schema = pa.schema([IMAGES.field(name) for name in dict.fromkeys(("image_id", *columns))])
        limit, values = self._connector.page_rows, {"job": self._job}
        where = "job = :job"
        if status is not None:
            where, values = f"{where} and status = :status", {**values, "status": status}
        page = self._select(Query(self._tables.images, schema, where, "image_id", limit), **values)
        while len(page):
            yield from page.select(list(columns)).to_batches(max_chunksize=_BATCH_ROWS)
            if len(page) < limit:
                return
            following = Query(self._tables.images, schema, f"{where} and image_id > :last", "image_id", limit)
            page = self._select(following, **values, last=page.column("image_id")[-1].as_py())

    def detections(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns of `detections` of this job, by image id; a page is a query of its own."""
        schema = pa.schema([DETECTION_ROWS.field(name) for name in columns])
        where = "job = :job and image_id >= :first and image_id <= :last"
        query = Query(self._tables.detections, schema, where, "image_id")
        for first, last in self._spans():
            yield from self._select(query, job=self._job, first=first, last=last).to_batches(max_chunksize=_BATCH_ROWS)

    def summary(self) -> Summary:
        """Counts over all committed rows of this job."""
        return self._run(lambda transaction: summarize(transaction, self._tables, self._job))

    def read_manifest(self) -> dict[str, Any] | None:
        """What the last run left."""
        sql = f"select manifest from {self._tables.jobs} where id = :job"
        found = self._run(lambda transaction: transaction.execute(sql, job=self._job))
        return json.loads(found[0][0]) if found and found[0][0] else None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Keep counts, parameters and timings beside the rows, without credentials."""
        text = json.dumps(redact_values(manifest), sort_keys=True)
        sql = f"update {self._tables.jobs} set manifest = :manifest where id = :job"
        self._run(lambda transaction: transaction.change(sql, manifest=text, job=self._job))

    def close(self) -> None:
        """End connections."""
        self._connector.close()

    def _run(self, work: Callable[[Transaction], T]) -> T:
        """Work in a transaction of its own, again if it collides with another or the database is away for a while.

        At first contact that ends the run at once: a URL may be wrong.
        """
        found = STORAGE_RETRY.call(
            lambda: self._try(work),
            what=f"a transaction in {self.location!r}",
            passes=lambda error: self._was_reached and isinstance(error, Unreachable),
        )
        self._was_reached = True
        return found

    def _try(self, work: Callable[[Transaction], T]) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._connector.transaction() as transaction:
                    return work(transaction)
            except Collision:
                if not tries_left:
                    raise
                time.sleep(random.uniform(0.01, 0.1))
        raise AssertionError("unreachable")

    def _select(self, query: Query, **values: Any) -> pa.Table:
        return self._run(lambda transaction: transaction.select(query, **values))

    def _spans(self) -> Iterator[tuple[str, str]]:
        """First and last ids of images that together have about a page of boxes."""
        first, last, boxes = "", "", 0
        for batch in self.rows(("image_id", "num_detections")):
            for image_id, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if not boxes:
                    first = image_id
                last, boxes = image_id, boxes + count
                if boxes >= self._connector.page_rows:
                    yield first, last
                    boxes = 0
        if boxes:
            yield first, last
