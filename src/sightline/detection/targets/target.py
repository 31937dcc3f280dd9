"""What a target of detections can do. A new kind is one file and one line in the factory.

The plan of a job and the leases of its chunks lie with the target, for that is what all runs of a job share, wherever
they run. A chunk is some images under one name. It is leased, so that two runs do not do the same work, and committed
once: the first commit wins, and readers see whole chunks only.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sightline.errors import DamagedError

ROW_FORMAT = 2
"""How rows are stored; 1 had no hash of ids, no revision and no checksum."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A run of a job, as leases name it.

    Attributes:
        token: Random; no two runs have the same.
        host: Boot, process namespace and start time of the driver's process: where its `pid` means this process only.
        pid: Of the driver's process there.
    """

    token: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """The rows of a committed chunk, as they are now.

    Attributes:
        ids: The hash of its image ids (`chunk_hash`) that was stored with the rows.
        revision: 1 as committed, and one more with every rewrite.
        num_images: Rows that are there.
    """

    name: str
    ids: str
    revision: int
    num_images: int


@dataclass(frozen=True, slots=True)
class ClassCount:
    """What was found of one class."""

    label: str
    detections: int
    images: int
    mean_score: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job has found so far.

    Attributes:
        images: Rows, rejected ones included.
        classes: Most detections first.
        reasons: How many images were rejected for which reason.
    """

    images: int
    rejected: int
    detections: int
    classes: tuple[ClassCount, ...]
    reasons: dict[str, int]


class Target(Protocol):
    """Where the detections of one job go, opened by one run of it."""

    @property
    def location(self) -> str:
        """How it is named in messages and manifests: without credentials."""
        ...

    def open(self, job: dict[str, Any]) -> None:
        """Make a place for a job, or find the one that is there; `job["id"]` is its identity.

        Raises:
            ExistsError: The place belongs to something else.
        """
        ...

    def generation(self, number: int) -> bytes | None:
        """A part of the plan, if it has been published."""
        ...

    def publish(self, number: int, plan: bytes) -> bool:
        """Add a part to the plan; false if there is one of that number already, which then stays."""
        ...

    def committed(self) -> set[str]:
        """Names of the chunks whose rows are there."""
        ...

    def claim(self, chunks: Sequence[str], owner: Owner, *, lease_s: float) -> dict[str, int]:
        """Lease chunks; for those that were got, how often they have been leased with this time.

        A chunk is not got if it is committed, or another run's lease of it lasts. A lease ends `lease_s` after it was
        last renewed, by the clock of the store, or at once when its owner is known to be dead.
        """
        ...

    def renew(self, chunks: Collection[str], owner: Owner, *, lease_s: float) -> None:
        """Make own leases last for as long again from now."""
        ...

    def release(self, chunks: Collection[str], owner: Owner) -> None:
        """Give own leases back; this attempt does not count, earlier ones do."""
        ...

    def commit(self, chunk: str, rows: pa.Table, owner: Owner) -> bool:
        """Add the rows of a chunk, all or none, and end its lease; false if another run was first.

        An acknowledgement that was lost is resolved by reading back: rows of this owner were committed.

        Args:
            rows: In the columns of `IMAGES`.
        """
        ...

    def rewrite(self, chunk: str, rows: pa.Table, owner: Owner, *, revision: int) -> bool:
        """Put new rows in place of those of the same images, in one step; other rows of the chunk stay.

        False, and nothing is changed, if the chunk is not at this revision any more.

        Raises:
            StorageError: The place has no locks that work, so it cannot be told.
        """
        ...

    def stored(self) -> Iterator[StoredChunk]:
        """All committed chunks."""
        ...

    def read_chunk(self, chunk: str, columns: Sequence[str]) -> tuple[int, pa.Table]:
        """The revision of a committed chunk, and some scalar columns of its rows at that revision."""
        ...

    def rows(self, columns: Sequence[str], *, status: str | None = None) -> Iterator[pa.RecordBatch]:
        """Some scalar columns of the committed rows of this job."""
        ...

    def summary(self) -> Summary:
        """Counts over all committed rows of this job."""
        ...

    def read_manifest(self) -> dict[str, Any] | None:
        """What the last run left."""
        ...

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Keep counts, parameters and timings beside the rows."""
        ...

    def close(self) -> None:
        """End connections."""
        ...


def rewrite_lease(chunk: str) -> str:
    """The name under which a run leases a committed chunk to rewrite it; the rewrite ends that run's lease."""
    return f"{chunk}.again"


def refuse_newer(row_format: int, place: str) -> None:
    """Raise DamagedError if rows are in a format that this version does not know."""
    if row_format > ROW_FORMAT:
        raise DamagedError(
            f"{place!r} has rows of format {row_format}, this Sightline reads 1 to {ROW_FORMAT}: install the version "
            "of Sightline that wrote them"
        )
