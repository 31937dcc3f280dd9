"""The table of chunks in a database: who works on which, and which are committed.

A run also leases names that are no chunks of the plan, for what is committed and looked at again. A name is all that a
lease needs; one that is never committed has no other rows.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sightline.detection.targets.connector import Transaction
from sightline.detection.targets.tables import CHUNK_ROWS
from sightline.detection.targets.target import ROW_FORMAT, Owner, rewrite_lease
from sightline.process_identity import is_dead

_IN_ONE_QUERY = 500
"""Values that are compared at once; databases have limits."""


@dataclass(frozen=True, slots=True)
class _Lease:
    """Who has a chunk."""

    owner: str | None
    host: str | None
    pid: int | None
    expires: float | None
    attempts: int
    committed: float | None

    def is_free(self, now: float) -> bool:
        if self.owner is None or self.expires is None or self.expires <= now:
            return True
        return self.host is not None and self.pid is not None and is_dead(self.host, self.pid)


@dataclass(frozen=True, slots=True)
class CommittedChunk:
    """What the table says of a chunk whose rows are there; `ids` is not known if it is of the first format."""

    name: str
    ids: str | None
    revision: int
    writer: str | None


class ChunkTable:
    """The chunks of one job.

    Args:
        table: Its name, quoted.
    """

    def __init__(self, table: str, job: str) -> None:
        self._table, self._job = table, job

    def committed(self, transaction: Transaction) -> set[str]:
        """Names of the chunks whose rows are there."""
        sql = f"select chunk from {self._table} where job = :job and committed is not null"
        return {chunk for (chunk,) in transaction.execute(sql, job=self._job)}

    def claim(self, transaction: Transaction, chunks: Sequence[str], owner: Owner, lease_s: float) -> dict[str, int]:
        """Lease what is free; for those that were got, how often they have been leased with this time.

        What this run holds already is no new attempt: the answer to its first claim was lost.
        """
        wanted = sorted(set(chunks))  # In one order for all runs, or two would wait for each other's rows.
        now = transaction.now()
        new = {"job": self._job, "owner": owner.token, "host": owner.host, "pid": owner.pid, "expires": now + lease_s}
        leases = self._leases(transaction, wanted)
        got = {}
        for chunk, lease in leases.items():
            if lease.committed is not None:
                continue
            if lease.is_free(now):
                if self._take(transaction, chunk, lease, new):
                    got[chunk] = lease.attempts + 1
            elif lease.owner == owner.token:
                got[chunk] = lease.attempts
        first = dict.fromkeys((chunk for chunk in wanted if chunk not in leases), 1)
        rows = [{**new, "chunk": chunk, "attempts": attempts} for chunk, attempts in first.items()]
        if rows:
            transaction.insert(self._table, pa.Table.from_pylist(rows, schema=CHUNK_ROWS))
        return got | first

    def renew(self, transaction: Transaction, chunks: Collection[str], owner: Owner, lease_s: float) -> None:
        """Make own leases last for as long again from now."""
        self._update_own(transaction, chunks, owner, "expires = :expires", expires=transaction.now() + lease_s)

    def release(self, transaction: Transaction, chunks: Collection[str], owner: Owner) -> None:
        """Give own leases back; whoever owns one has made an attempt, so their number stays at 0 or above."""
        cleared = "owner = null, host = null, pid = null, expires = null"
        self._update_own(transaction, chunks, owner, f"{cleared}, attempts = attempts - 1")

    def mark_committed(self, transaction: Transaction, chunk: str, ids: str, owner: Owner) -> bool:
        """End the lease of a chunk for good; false if it is committed already."""
        key = {"job": self._job, "chunk": chunk}
        new = {"committed": transaction.now(), "ids": ids, "writer": owner.token, "row_format": ROW_FORMAT}
        sql = (
            f"update {self._table} set committed = :committed, owner = null, expires = null, ids = :ids, revision = 1, "
            "writer = :writer, row_format = :row_format where job = :job and chunk = :chunk and committed is null"
        )
        if transaction.change(sql, **key, **new):
            return True
        if transaction.execute(f"select chunk from {self._table} where job = :job and chunk = :chunk", **key):
            return False
        row = {**key, **new, "attempts": 0, "revision": 1}
        transaction.insert(self._table, pa.Table.from_pylist([row], schema=CHUNK_ROWS))
        return True

    def mark_rewritten(self, transaction: Transaction, chunk: str, revision: int, *, writer: str, owner: Owner) -> bool:
        """Go on to the next revision, and end the lease of who does that, no other; false if this one is past."""
        sql = (
            f"update {self._table} set revision = :revision + 1, writer = :writer "
            "where job = :job and chunk = :chunk and committed is not null and coalesce(revision, 1) = :revision"
        )
        if not transaction.change(sql, job=self._job, chunk=chunk, revision=revision, writer=writer):
            return False
        own = "job = :job and chunk = :chunk and owner = :owner and committed is null"
        ended = f"delete from {self._table} where {own}"
        transaction.change(ended, job=self._job, chunk=rewrite_lease(chunk), owner=owner.token)
        return True

    def row_format(self, transaction: Transaction) -> int:
        """The newest format of which there are rows."""
        sql = f"select max(row_format) from {self._table} where job = :job"
        return int(transaction.execute(sql, job=self._job)[0][0] or 1)

    def find(self, transaction: Transaction, chunk: str) -> CommittedChunk | None:
        """A committed chunk."""
        return next(iter(self._committed(transaction, " and chunk = :chunk", chunk=chunk)), None)

    def all(self, transaction: Transaction) -> list[CommittedChunk]:
        """Every committed chunk, by name."""
        return sorted(self._committed(transaction), key=lambda chunk: chunk.name)

    def _committed(self, transaction: Transaction, where: str = "", **values: str) -> Iterator[CommittedChunk]:
        sql = (
            f"select chunk, ids, revision, writer from {self._table} where job = :job and committed is not null{where}"
        )
        for name, ids, revision, writer in transaction.execute(sql, job=self._job, **values):
            yield CommittedChunk(name, ids, revision or 1, writer)

    def _leases(self, transaction: Transaction, chunks: list[str]) -> dict[str, _Lease]:
        found = {}
        for some, listed in listed_values(chunks):
            sql = (
                f"select chunk, owner, host, pid, expires, attempts, committed from {self._table} "
                f"where job = :job and chunk in ({listed})"
            )
            for chunk, *lease in transaction.execute(sql, job=self._job, **some):
                found[chunk] = _Lease(*lease)
        return dict(sorted(found.items()))

    def _take(self, transaction: Transaction, chunk: str, lease: _Lease, new: dict[str, Any]) -> bool:
        """Change a lease from what was read; false if another run has changed it since."""
        sql = (
            f"update {self._table} set owner = :owner, host = :host, pid = :pid, expires = :expires, "
            "attempts = attempts + 1 where job = :job and chunk = :chunk and committed is null "
            "and (owner is null or (owner = :seen and expires = :seen_expires))"
        )
        return transaction.change(sql, **new, chunk=chunk, seen=lease.owner, seen_expires=lease.expires) == 1

    def _update_own(
        self, transaction: Transaction, chunks: Collection[str], owner: Owner, assignments: str, **values: Any
    ) -> None:
        sql = (
            f"update {self._table} set {assignments} "
            "where job = :job and chunk = :chunk and owner = :owner and committed is null"
        )
        for chunk in sorted(chunks):
            transaction.change(sql, job=self._job, chunk=chunk, owner=owner.token, **values)


def listed_values(values: Sequence[str]) -> Iterator[tuple[dict[str, str], str]]:
    """Values in groups, as named parameters and as the list that names them."""
    for start in range(0, len(values), _IN_ONE_QUERY):
        some = {f"value{number}": value for number, value in enumerate(values[start : start + _IN_ONE_QUERY])}
        yield some, ", ".join(f":{name}" for name in some)
