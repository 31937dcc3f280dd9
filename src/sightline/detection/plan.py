"""What a job has to do, in numbered generations that are published once and never change.

A generation is a list of images cut into chunks. Whoever lists the source first publishes the first generation; later
runs, and runs at the same time, add only images that no generation has. So every image is in exactly one chunk, and a
chunk has one name, whoever works on it. Plan and rows also know a chunk by the hash of its image ids: rows of that name
that are not of these images belong to another plan, and end the run.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Literal

import pyarrow as pa

from sightline.detection.chunk_hash import ChunkHashes, count_of, hash_ids
from sightline.detection.item import Item, Source
from sightline.detection.known import Known
from sightline.detection.sources.limited import Limited
from sightline.detection.targets.target import Target, rewrite_lease
from sightline.errors import DamagedError, StorageError
from sightline.retry import STORAGE_RETRY

_FORMAT = 2
_METADATA = b"sightline"
_SEAL = b"sightline blake2b:"
_SEAL_BYTES = 32
_END_OF_FORMAT_1 = b"ARROW1"
"""What ends a plan of the first format, which had no checksum."""
_COLUMNS = ("image_id", "uri", "version", "ref")
_SCHEMA = pa.schema([*((name, pa.string()) for name in _COLUMNS), ("chunk", pa.int32())])
_CHUNKS = ((64, 8), (1024, 32), (16384, 128))
"""Up to which place in the plan chunks have how many images: the first results come soon, and ten million images do not
make a million files."""
_LARGEST_CHUNK = 512
_GENERATIONS = (256, 4096)
"""Images of the first generations, so that work begins before a long listing ends."""
_LARGEST_GENERATION = 65536


Retry = Literal["unread", "rejected", "none"]
"""Which rejected images are looked at again: those that could not be read, all of them, or none."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Images that are committed together.

    Attributes:
        again: Whether they were committed before and are to be looked at again: changed, or rejected.
    """

    name: str
    items: tuple[Item, ...]
    again: bool = False

    @property
    def lease(self) -> str:
        """What is leased by whoever works on it; a chunk that is done can only be leased to be done again."""
        return rewrite_lease(self.name) if self.again else self.name


@dataclass(frozen=True, slots=True)
class Generation:
    """A part of the plan that was published.

    Attributes:
        hashes: Of the image ids of each chunk, in order.
    """

    number: int
    num_images: int
    hashes: tuple[str, ...]

    def chunks(self) -> dict[str, str]:
        """The hash of every chunk by its name."""
        return {_name(self.number, ordinal): found for ordinal, found in enumerate(self.hashes)}


def read_chunks(target: Target, number: int) -> Iterator[Chunk]:
    """The chunks of a published generation, in order."""
    table, _ = _decode(_published(target, number), target, number)
    for ordinal, rows in groupby(_rows(table), key=lambda row: row[-1]):
        yield Chunk(_name(number, ordinal), tuple(Item(*row[:-1]) for row in rows))


class Planner:
    """Extends the plan of a job by what its source has now.

    Attributes:
        known: Every image of the plan, and what is to be done again.
    """

    def __init__(self, target: Target, source: Source, *, chunk: int | None = None, retry: Retry = "unread") -> None:
        self._target, self._source, self._chunk, self._retry = target, source, chunk, retry
        self._generations: list[Generation] = []
        self._planned = 0
        self._most = source.limit if isinstance(source, Limited) else sys.maxsize
        self._stopped = False
        self._revisions: dict[str, int] = {}
        self.known = Known()

    def generations(self) -> Iterator[Generation]:
        """First those that are there, then new ones as the listing goes on.

        Raises:
            DamagedError: There are committed rows that do not belong to the plan.
        """
        committed = self._note_committed()
        while (plan := self._target.generation(len(self._generations))) is not None:
            generation = self._adopt(plan)
            for name, planned in generation.chunks().items():
                if committed.pop(name, planned) != planned:
                    raise self._mismatch(name)
            yield generation
        if committed:
            raise self._mismatch(min(committed))
        fresh: list[Item] = []
        for item in self._source.items():
            if self._stopped:
                return
            if self.known.is_new(item) and self._planned + len(fresh) < self._most:
                fresh.append(item)
                if len(fresh) >= self._generation_size():
                    yield from self._publish(fresh)
                    fresh = []
        yield from self._publish(fresh)

    def stop(self) -> None:
        """End a listing that is under way; another thread may ask for that."""
        self._stopped = True

    def again(self) -> Iterator[Chunk]:
        """Committed chunks with those of their images that changed since, or are to be tried again."""
        for name, items in self.known.again():
            yield Chunk(name, items, again=True)

    def left_to_do(self, chunk: Chunk) -> Chunk:
        """A chunk that is looked at again, without what another run has looked at again since this one began.

        If its rows were rewritten since, only images that have changed are left; others are for the next run.
        """
        revision, rows = self._target.read_chunk(chunk.name, ["image_id", "version"])
        versions = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        untouched = self._revisions.get(chunk.name) == revision
        items = [item for item in chunk.items if untouched or versions.get(item.image_id) != item.version]
        return replace(chunk, items=tuple(items))

    def reconcile(self) -> None:
        """Compare the plan with what is stored, chunk by chunk.

        Raises:
            DamagedError: They differ.
        """
        planned = {name: found for generation in self._generations for name, found in generation.chunks().items()}
        later: dict[int, dict[str, str]] = {}
        for stored in self._target.stored():
            expected = planned.pop(stored.name, None)
            if expected is None and (number := self._number_since(stored.name)) is not None:
                if number not in later:
                    later[number] = self._chunks_of(number)
                expected = later[number].get(stored.name)
            if stored.ids != expected or stored.num_images != count_of(expected):
                raise self._mismatch(stored.name)
        if planned:
            raise DamagedError(
                f"{self._target.location!r} has no rows for {len(planned):,} chunks of its plan, such as "
                f"{min(planned)!r}, although all were committed: somebody removed them; run the same command again"
            )

    def _number_since(self, name: str) -> int | None:
        """The generation of a chunk, if another run may have added it to the plan since this one listed."""
        number, _, ordinal = name.partition("-")
        is_later = number.isdigit() and ordinal.isdigit() and int(number) >= len(self._generations)
        return int(number) if is_later else None

    def _chunks_of(self, number: int) -> dict[str, str]:
        plan = self._target.generation(number)
        return Generation(number, 0, _decode(plan, self._target, number)[1]).chunks() if plan else {}

    def _mismatch(self, name: str) -> DamagedError:
        return DamagedError(
            f"the rows of chunk {name!r} in {self._target.location!r} are not those of the images that its plan has: "
            "the plan or the rows were removed, replaced, or restored from another time. Restore both together, or "
            "write to another place with --to"
        )

    def _note_committed(self) -> dict[str, str]:
        """What was seen of each image when it was looked at; gives the hash of the ids of each chunk's rows."""
        whole, hashes = self._target.committed(), ChunkHashes()
        for batch in self._target.rows(["image_id", "version", "chunk", "status", "stage"]):
            self.known.add_committed(batch, retry=self._retry)
            for chunk, image_id in zip(batch["chunk"].to_pylist(), batch["image_id"].to_pylist(), strict=True):
                hashes.add(chunk, image_id)
        if retried := self.known.chunks_to_retry():
            self._revisions = {chunk.name: chunk.revision for chunk in self._target.stored() if chunk.name in retried}
        # Of a chunk that another run commits at this moment only some rows may have been seen.
        return {chunk: found for chunk, found in hashes.to_dict().items() if chunk in whole}

    def _publish(self, fresh: list[Item]) -> Iterator[Generation]:
        """Publish some images that are new; of those that another run has published meanwhile, none is left."""
        while fresh:
            number = len(self._generations)
            hashes = self._hashes(fresh)
            if self._target.publish(number, self._encode(fresh, hashes)):
                yield self._count(hashes)
                return
            plan = _published(self._target, number)
            theirs = {row[0] for row in _rows(_decode(plan, self._target, number)[0])}
            yield self._adopt(plan)
            fresh = [item for item in fresh if item.image_id not in theirs][: max(0, self._most - self._planned)]

    def _adopt(self, plan: bytes) -> Generation:
        table, hashes = _decode(plan, self._target, len(self._generations))
        self.known.add(table)
        return self._count(hashes)

    def _count(self, hashes: tuple[str, ...]) -> Generation:
        found = Generation(len(self._generations), sum(map(count_of, hashes)), hashes)
        self._generations.append(found)
        self._planned += found.num_images
        return found

    def _generation_size(self) -> int:
        number = len(self._generations)
        return _GENERATIONS[number] if number < len(_GENERATIONS) else _LARGEST_GENERATION

    def _cut(self, count: int) -> list[int]:
        """The sizes of chunks for so many images more."""
        sizes: list[int] = []
        while (done := sum(sizes)) < count:
            place = self._planned + done
            usual = next((size for end, size in _CHUNKS if place < end), _LARGEST_CHUNK)
            sizes.append(min(self._chunk or usual, count - done))
        return sizes

    def _hashes(self, items: list[Item]) -> tuple[str, ...]:
        ids, found = iter([item.image_id for item in items]), []
        for size in self._cut(len(items)):
            found.append(hash_ids(islice(ids, size)))
        return tuple(found)

    def _encode(self, items: list[Item], hashes: tuple[str, ...]) -> bytes:
        ordinals = [ordinal for ordinal, found in enumerate(hashes) for _ in range(count_of(found))]
        columns: list[list[object]] = [[getattr(item, name) for item in items] for name in _COLUMNS]
        schema = _SCHEMA.with_metadata({_METADATA: json.dumps({"format": _FORMAT, "chunks": hashes})})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(pa.table([*columns, ordinals], schema=schema))
        content: bytes = sink.getvalue().to_pybytes()
        return content + _seal(content)


def _name(number: int, ordinal: int) -> str:
    return f"{number:06d}-{ordinal:05d}"


def _seal(content: bytes) -> bytes:
    """What stands behind a plan: its checksum."""
    return _SEAL + hashlib.blake2b(content, digest_size=_SEAL_BYTES).digest()


def _published(target: Target, number: int) -> bytes:
    """A generation that is known to be there; a file server may take a while to show what another machine wrote."""

    def read() -> bytes:
        plan = target.generation(number)
        if plan is None:
            raise _NotShown(f"{target.location!r} does not show part {number} of its plan, which was published")
        return plan

    what = f"reading the plan in {target.location}"
    return STORAGE_RETRY.call(read, what=what, passes=lambda error: isinstance(error, _NotShown))


class _NotShown(StorageError):
    """A file that another machine has written is not to be seen here yet."""


def _decode(plan: bytes, target: Target, number: int) -> tuple[pa.Table, tuple[str, ...]]:
    """The images of a generation, and the hashes of its chunks.

    Raises:
        DamagedError: It is not what was written, or was written by a later version.
    """
    where = f"part {number} of the plan in {target.location!r}"
    content = plan
    if not plan.endswith(_END_OF_FORMAT_1):
        content, seal = plan[: -len(_seal(b""))], plan[-len(_seal(b"")) :]
        if seal != _seal(content):
            raise DamagedError(f"{where} is damaged: restore it, or write to another place with --to")
    try:
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{where} is damaged ({error}): restore it, or write to another place with --to") from None
    said = json.loads((table.schema.metadata or {}).get(_METADATA, b"{}"))
    if said.get("format", 1) > _FORMAT:
        raise DamagedError(f"{where} was written by a later version of Sightline: update it, or take another --to")
    if "chunks" in said:
        return table, tuple(said["chunks"])
    return table, tuple(hash_ids(row[0] for row in rows) for _, rows in groupby(_rows(table), key=lambda row: row[-1]))


def _rows(table: pa.Table) -> Iterator[tuple[str, str, str, str, int]]:
    for batch in table.to_batches(max_chunksize=4096):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
