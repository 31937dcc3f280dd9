"""What a job has to do, in numbered generations that are published once and never change.

A generation is a list of images cut into chunks. Whoever lists the source first publishes the first generation; later
runs, and runs at the same time, add only images that no generation has. So every image is in exactly one chunk, and a
chunk has one name, whoever works on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from sightline.detection.item import Item, Source
from sightline.detection.known import Known
from sightline.detection.targets.target import Target, rewrite_lease

_COLUMNS = ("image_id", "uri", "version", "ref")
_SCHEMA = pa.schema([*((name, pa.string()) for name in _COLUMNS), ("chunk", pa.int32())])
_CHUNKS = ((64, 8), (1024, 32), (16384, 128))
"""Up to which place in the plan chunks have how many images: the first results come soon, and ten million images do not
make a million files."""
_LARGEST_CHUNK = 512
_GENERATIONS = (256, 4096)
"""Images of the first generations, so that work begins before a long listing ends."""
_LARGEST_GENERATION = 65536


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
    """A part of the plan that was published."""

    number: int
    num_images: int
    num_chunks: int


def read_chunks(target: Target, number: int) -> Iterator[Chunk]:
    """The chunks of a published generation, in order."""
    plan = target.generation(number)
    assert plan is not None, f"generation {number} was published"
    for ordinal, rows in groupby(_rows(plan), key=lambda row: row[-1]):
        yield Chunk(f"{number:06d}-{ordinal:05d}", tuple(Item(*row[:-1]) for row in rows))


class Planner:
    """Extends the plan of a job by what its source has now.

    Attributes:
        known: Every image of the plan, and what is to be done again.
    """

    def __init__(
        self, target: Target, source: Source, *, chunk: int | None = None, retry_rejected: bool = False
    ) -> None:
        self._target, self._source, self._chunk = target, source, chunk
        self._retry = retry_rejected
        self._number = self._planned = 0
        self.known = Known()

    def generations(self) -> Iterator[Generation]:
        """First those that are there, then new ones as the listing goes on."""
        while (plan := self._target.generation(self._number)) is not None:
            yield self._adopt(plan)
        self._note_committed()
        fresh: list[Item] = []
        for item in self._source.items():
            if self.known.is_new(item):
                fresh.append(item)
                if len(fresh) >= self._generation_size():
                    yield from self._publish(fresh)
                    fresh = []
        yield from self._publish(fresh)

    def again(self) -> Iterator[Chunk]:
        """Committed chunks with those of their images that changed since, or are to be tried again."""
        for name, items in self.known.again():
            yield Chunk(name, items, again=True)

    def _note_committed(self) -> None:
        """What was seen of each image when it was looked at; a changed one is told by its version."""
        for batch in self._target.rows(["image_id", "version", "chunk", "status"]):
            self.known.add_committed(batch, retry_rejected=self._retry)

    def _publish(self, fresh: list[Item]) -> Iterator[Generation]:
        """Publish some images that are new; of those that another run has published meanwhile, none is left."""
        while fresh:
            if self._target.publish(self._number, self._encode(fresh)):
                yield self._count(len(fresh), len(self._cut(len(fresh))))
                return
            plan = self._target.generation(self._number)
            assert plan is not None, "somebody was first"
            theirs = {row[0] for row in _rows(plan)}
            yield self._adopt(plan)
            fresh = [item for item in fresh if item.image_id not in theirs]

    def _adopt(self, plan: bytes) -> Generation:
        table = _table(plan)
        self.known.add(table)
        last = table.column("chunk")[-1].as_py()
        return self._count(table.num_rows, last + 1)

    def _count(self, images: int, chunks: int) -> Generation:
        found = Generation(self._number, images, chunks)
        self._number, self._planned = self._number + 1, self._planned + images
        return found

    def _generation_size(self) -> int:
        return _GENERATIONS[self._number] if self._number < len(_GENERATIONS) else _LARGEST_GENERATION

    def _cut(self, count: int) -> list[int]:
        """The sizes of chunks for so many images more."""
        sizes: list[int] = []
        while (done := sum(sizes)) < count:
            place = self._planned + done
            usual = next((size for end, size in _CHUNKS if place < end), _LARGEST_CHUNK)
            sizes.append(min(self._chunk or usual, count - done))
        return sizes

    def _encode(self, items: list[Item]) -> bytes:
        ordinals = [ordinal for ordinal, size in enumerate(self._cut(len(items))) for _ in range(size)]
        columns: list[list[object]] = [[getattr(item, name) for item in items] for name in _COLUMNS]
        table = pa.table([*columns, ordinals], schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _table(plan: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(plan)).read_all()


def _rows(plan: bytes) -> Iterator[tuple[str, str, str, str, int]]:
    for batch in _table(plan).to_batches(max_chunksize=4096):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
