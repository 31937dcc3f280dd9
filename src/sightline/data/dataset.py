"""A stored dataset, read back: any image by its row, or whole shards in turn."""

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sightline.data.schema import INDEX, MANIFEST, REJECTS, ROWS, DatasetInfo, read_manifest
from sightline.data.storage import Folder
from sightline.data.stored_file import DatasetFolder, StoredFile
from sightline.errors import DamagedError, NotFoundError
from sightline.structures import Annotation, Boxes, Sample

_OPEN_SHARDS = 128
_SMALL_COLUMNS = [name for name in ROWS.names if name != "image"]


class Dataset:
    """Annotated images in the order they were stored, or one split of them.

    >>> import sightline
    >>> dataset = sightline.open_dataset("boards")          # doctest: +SKIP
    >>> len(dataset.select("train")), dataset.classes       # doctest: +SKIP
    """

    def __init__(self, folder: "DatasetFolder", info: DatasetInfo, rows: NDArray[np.int64] | None = None) -> None:
        self.info = info
        self._folder = folder
        self._rows = rows
        self._shards = _ShardCache(folder, info)

    @classmethod
    def open(cls, location: str | Path) -> "Dataset":
        """Open a dataset's directory or URL."""
        folder = Folder.open(location)
        return cls(folder, read_manifest(folder))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them."""
        return self.info.classes

    @property
    def location(self) -> str:
        """Where it lies."""
        return self._folder.location

    def __len__(self) -> int:
        return self.info.num_images if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        """The image at a position of this selection."""
        return self._sample(self._row(index))

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def select(self, split: str) -> "Dataset":
        """The images of one split."""
        if split not in self.info.splits:
            raise NotFoundError(
                f"dataset {self.info.name!r} has no split {split!r}, only {', '.join(self.info.splits)}"
            )
        number = list(self.info.splits).index(split)
        chosen = np.flatnonzero(self._index.split == number).astype(np.int64)
        if self._rows is not None:
            chosen = np.intersect1d(self._rows, chosen, assume_unique=True)
        return Dataset(self._folder, self.info, chosen)

    def take(self, positions: Sequence[int]) -> "Dataset":
        """The images at some positions of this selection, in the order they were stored."""
        rows = np.array(sorted({self._row(position) for position in positions}), np.int64)
        return Dataset(self._folder, self.info, rows)

    def read_through(self, folder: "DatasetFolder") -> "Dataset":
        """The same images, read from another place that has the same files."""
        return Dataset(folder, self.info, self._rows)

    def read_shard(self, number: int) -> Iterator[Sample]:
        """The images of one shard in order, reading it from front to back, a row group at a time; for streaming."""
        if self._rows is None:
            yield from self._shards.stream(number, None)
        else:
            first, last = np.searchsorted(self._rows, self._shards.starts[number : number + 2])
            yield from self._shards.stream(number, set(self._rows[first:last].tolist()))

    @property
    def num_shards(self) -> int:
        """How many shards there are to stream."""
        return len(self.info.shards)

    def annotation(self, index: int) -> Annotation:
        """What is known of an image, without touching its bytes."""
        row = self._row(index)
        shard = int(self._index.shard[row])
        return self._shards.columns(shard).annotation(row - int(self._shards.starts[shard]))

    def image_id(self, index: int) -> str:
        """The name of an image that nothing else has, without touching its bytes."""
        row = self._row(index)
        shard = int(self._index.shard[row])
        return self._shards.columns(shard).image_id(row - int(self._shards.starts[shard]))

    def size(self, index: int) -> tuple[int, int]:
        """Width and height of an image, without touching its bytes."""
        row = self._row(index)
        shard = int(self._index.shard[row])
        return self._shards.columns(shard).size(row - int(self._shards.starts[shard]))

    def content_keys(self) -> list[bytes]:
        """A key of each image of this selection; images of identical bytes, and no others, have the same one.

        The index of a dataset has them. That of format 1 does not: there, images whose size in bytes no other image has
        are told apart by it, and only the others are read.
        """
        rows = np.arange(len(self)) if self._rows is None else self._rows
        content = _read_index(self._folder, "content")
        if content is not None:
            found: list[bytes] = content.column("content").take(pa.array(rows)).to_pylist()
            return found
        lengths = self._index.length[rows].tolist()
        times = Counter(lengths)
        return [
            str(length).encode() if times[length] == 1 else hashlib.sha256(self[position].image).digest()
            for position, length in enumerate(lengths)
        ]

    def rejects(self) -> pa.Table:
        """What ingest could not use, with reasons: file_name, stage, reason, detail, action."""
        with _damage_named(self._folder, REJECTS):
            return pq.read_table(StoredFile(self._folder, REJECTS, beside=MANIFEST))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "info": self.info, "rows": self._rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], state["info"], state["rows"])  # type: ignore[misc]

    @cached_property
    def _index(self) -> "_Index":
        return _Index.read(self._folder, self.info)

    def _row(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return int(self._rows[index]) if self._rows is not None else index % len(self)

    def _sample(self, row: int) -> Sample:
        index = self._index
        shard = int(index.shard[row])
        columns = self._shards.columns(shard)
        image = self._shards.image(shard, int(index.offset[row]), int(index.length[row]))
        return columns.sample(row - int(self._shards.starts[shard]), image)


@dataclass(frozen=True)
class _Index:
    """Where every image lies; columns of equal length in row order."""

    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    split: NDArray[np.int16]

    @classmethod
    def read(cls, folder: "DatasetFolder", info: DatasetInfo) -> "_Index":
        with _damage_named(folder, INDEX):
            names = ("shard", "offset", "length", "split")
            table = _read_index(folder, *names)
            if table is None:
                raise ValueError(f"it has not the columns {', '.join(names)}")
            found = cls(*(table.column(name).to_numpy() for name in names))
        expected = np.repeat(np.arange(len(info.shards)), [shard.rows for shard in info.shards])
        if not np.array_equal(found.shard, expected):
            raise DamagedError(f"{folder.location}/{INDEX} is not that of this dataset: ingest it again")
        return found


def _read_index(folder: DatasetFolder, *names: str) -> pa.Table | None:
    """Some columns of the index; None if it has not all of them. Others are not read."""
    with _damage_named(folder, INDEX):
        stored = pa.ipc.open_file(StoredFile(folder, INDEX, beside=MANIFEST)).schema
        wanted = [stored.get_field_index(name) for name in names]
        if min(wanted) < 0:
            return None
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        return pa.ipc.open_file(StoredFile(folder, INDEX, beside=MANIFEST), options=options).read_all()


class _ShardCache:
    """Small columns of the shards that were touched, and a bounded number of open files; safe for threads."""

    def __init__(self, folder: "DatasetFolder", info: DatasetInfo) -> None:
        self._folder, self._info = folder, info
        self.starts = np.cumsum([0, *(shard.rows for shard in info.shards)])
        self._columns: dict[int, _Columns] = {}
        self._files: OrderedDict[int, StoredFile] = OrderedDict()
        self._lock = threading.Lock()

    def columns(self, shard: int) -> "_Columns":
        found = self._columns.get(shard)
        if found is None:
            with self._open_parquet(shard) as parquet:
                found = _Columns(parquet.read(columns=_SMALL_COLUMNS))
            self._columns[shard] = found
        return found

    def image(self, shard: int, offset: int, length: int) -> memoryview:
        """The bytes of one image, before which Parquet has put their number."""
        found = memoryview(self._file(shard).read_at(length + 4, offset - 4))
        if len(found) != length + 4 or int.from_bytes(found[:4], "little") != length:
            name = self._info.shards[shard].file
            raise DamagedError(f"{self._folder.location}/{name} is not the file that was written: ingest again")
        return found[4:]

    def stream(self, shard: int, rows: set[int] | None) -> Iterator[Sample]:
        row = int(self.starts[shard])
        with self._open_parquet(shard) as parquet:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                columns = _Columns(table)
                images = table.column("image").combine_chunks()
                for position in range(table.num_rows):
                    if rows is None or row in rows:
                        yield columns.sample(position, memoryview(images[position].as_buffer()))
                    row += 1

    @contextmanager
    def _open_parquet(self, shard: int) -> Iterator[pq.ParquetFile]:
        info = self._info.shards[shard]
        with (
            _damage_named(self._folder, info.file),
            pq.ParquetFile(
                StoredFile(self._folder, info.file, beside=MANIFEST), page_checksum_verification=True
            ) as parquet,
        ):
            if parquet.metadata.num_rows != info.rows:
                raise ValueError(f"{parquet.metadata.num_rows} rows instead of {info.rows}")
            yield parquet

    def _file(self, shard: int) -> StoredFile:
        with self._lock:
            file = self._files.get(shard)
            if file is None:
                name = self._info.shards[shard].file
                file = self._files[shard] = StoredFile(self._folder, name, beside=MANIFEST)
                if len(self._files) > _OPEN_SHARDS:
                    self._files.popitem(last=False)  # It is closed when the last thread has read from it.
            else:
                self._files.move_to_end(shard)
            return file


@contextmanager
def _damage_named(folder: "DatasetFolder", file: str) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes one error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DamagedError(f"{folder.location}/{file} is not the file that was written: {reason}") from error


class _Columns:
    """The small columns of some rows, as Arrow and numpy arrays: no Python object is kept for a row."""

    def __init__(self, table: pa.Table) -> None:
        column = {name: table.column(name).combine_chunks() for name in table.column_names}
        self._ids, self._names, self._label = column["image_id"], column["file_name"], column["label"]
        self._splits = column["split"].dictionary_encode()
        self._widths, self._heights = column["width"].to_numpy(), column["height"].to_numpy()
        self._ends = column["labels"].offsets.to_numpy()
        self._boxes: Boxes = column["boxes"].values.flatten().to_numpy().reshape(-1, 4)
        self._labels = column["labels"].values.to_numpy()
        self._ignore = column["ignore"].values.to_numpy(zero_copy_only=False)
        self._areas = column.get("areas")  # A dataset of format 1 has none.

    def annotation(self, position: int) -> Annotation:
        part = slice(self._ends[position], self._ends[position + 1])
        areas = self._areas[position].values if self._areas is not None else None
        return Annotation(
            self._boxes[part],
            self._labels[part],
            self._ignore[part],
            self._label[position].as_py(),
            None if areas is None else areas.to_numpy(),
        )

    def image_id(self, position: int) -> str:
        found: str = self._ids[position].as_py()
        return found

    def size(self, position: int) -> tuple[int, int]:
        return int(self._widths[position]), int(self._heights[position])

    def sample(self, position: int, image: memoryview) -> Sample:
        return Sample(
            self.image_id(position),
            self._names[position].as_py(),
            image,
            *self.size(position),
            self._splits[position].as_py(),
            self.annotation(position),
        )
