"""One shard: load, check and write a run of entries into a Parquet file. Runs in a worker process."""

import hashlib
import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sightline.data.decode import ImageHeader, check_image, read_header
from sightline.data.reach import load_patiently
from sightline.data.record import Entry, Loaded, Reader, Reject
from sightline.data.schema import ROWS
from sightline.data.split import Splitter
from sightline.data.verdict import judge_boxes
from sightline.errors import ConfigError, ImageError, SightlineError
from sightline.structures import Annotation
from sightline.workspace import check_name

ROW_GROUP_BYTES = 4 << 20
_LONGEST_PAGE_HEADER = 512


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """What a worker must know besides the entries.

    Attributes:
        keep_splits: Whether the source's own splits count.
        verify: "full" decodes every image, "header" reads sizes only.
    """

    splitter: Splitter
    keep_splits: bool
    verify: str
    max_pixels: int


@dataclass(slots=True)
class ShardResult:
    """What became of a shard's entries, in row order.

    Attributes:
        digests: 32 bytes a row, over the image's bytes and all that is known of it.
        contents: 16 bytes a row, the beginning of the SHA-256 of the image's bytes.
        offsets: Where each image's bytes begin within the file.
        boxes_per_class: By split; for classification, the images themselves.
    """

    file: str
    bytes: int = 0
    image_bytes: int = 0
    digests: bytearray = field(default_factory=bytearray)
    contents: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    boxes_per_class: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    images_per_class: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    rejects: list[Reject] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Images in the shard."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class _Row:
    image_id: str
    entry: Entry
    loaded: Loaded
    content: bytes
    header: ImageHeader
    split: str
    annotation: Annotation


def image_id_of(name: str) -> str:
    """The stable id of an image: 128 bits of the hash of its name within the source."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def printable(name: str) -> str:
    """A name as valid UTF-8, also when the disk's bytes are not."""
    return name.encode("utf-8", "backslashreplace").decode()


def write_shard(reader: Reader, entries: Iterable[Entry], path: Path, options: ShardOptions) -> ShardResult:
    """Load and check the entries and write those that can be used; memory is bounded by a row group."""
    result = ShardResult(path.name)
    rows = _checked_rows(reader, entries, options, result)
    beginnings: list[bytes] = []
    with pq.ParquetWriter(path, ROWS, **_writer_options()) as writer:
        for group in _row_groups(rows):
            writer.write_table(_table(group), row_group_size=len(group))
            _note(group, result)
            beginnings += [row.loaded.image[:32] for row in group]
    result.bytes = path.stat().st_size
    result.offsets = find_offsets(path, result.lengths, beginnings)
    return result


def scan_entries(reader: Reader, entries: Iterable[Entry]) -> list[tuple[bytes, frozenset[int]]]:
    """The digest of the bytes and the classes of each entry that loads; what a stratified split is learned from."""
    found = []
    for entry in entries:
        try:
            loaded = _load(reader, entry)
        except ImageError:
            continue  # It is met again, and reported, when the shard is written.
        found.append((hashlib.sha256(loaded.image).digest(), _classes_of(loaded)))
    return found


def find_offsets(path: Path, lengths: list[int], beginnings: list[bytes]) -> list[int]:
    """Where the bytes of each image begin in a shard, so that one image can be read without its neighbours.

    Images are stored uncompressed and plainly encoded: a 4-byte length, then the bytes. Pages follow each other with
    small headers between them, which are stepped over by looking for the next length and the beginning of its image.
    """
    if not lengths:
        return []
    metadata = pq.ParquetFile(path).metadata
    offsets: list[int] = []
    with open(path, "rb", buffering=0) as file:
        for group in range(metadata.num_row_groups):
            position = metadata.row_group(group).column(ROWS.get_field_index("image")).data_page_offset
            for _ in range(metadata.row_group(group).num_rows):
                length, beginning = lengths[len(offsets)], beginnings[len(offsets)]
                near = os.pread(file.fileno(), _LONGEST_PAGE_HEADER + len(beginning), position)
                found = near.find(struct.pack("<I", length) + beginning)
                assert found >= 0, f"image {len(offsets)} is not stored plainly in {path}"
                offsets.append(position + found + 4)
                position = offsets[-1] + length
    return offsets


def _checked_rows(
    reader: Reader, entries: Iterable[Entry], options: ShardOptions, result: ShardResult
) -> Iterator[_Row]:
    for entry in entries:
        try:
            yield _check(reader, entry, options, result.rejects)
        except ImageError as error:
            result.rejects.append(Reject(entry.name, error.stage, error.reason, error.detail))
        except SightlineError:
            raise
        except Exception as error:
            error.add_note(f"while reading {entry.name!r}")
            raise


def _load(reader: Reader, entry: Entry) -> Loaded:
    return load_patiently(lambda: reader.load(entry), reader.folders, entry.name)


def _check(reader: Reader, entry: Entry, options: ShardOptions, rejects: list[Reject]) -> _Row:
    loaded = _load(reader, entry)
    check = check_image if options.verify == "full" else read_header
    header = check(loaded.image, max_pixels=options.max_pixels)
    annotation, problems = judge_boxes(entry.name, loaded, header)
    rejects.extend(problems)
    content = hashlib.sha256(loaded.image).digest()
    split = entry.split if options.keep_splits else None
    if split is not None:
        _check_split(split)
    else:
        split = options.splitter.assign(content, _classes_of(loaded))
    return _Row(image_id_of(entry.name), entry, loaded, content, header, split, annotation)


def _check_split(split: str) -> None:
    """Splits are named in file names and on command lines."""
    try:
        check_name(split)
    except ConfigError as error:
        raise ImageError("split name is not usable", str(error), stage="annotation") from None


def _classes_of(loaded: Loaded) -> frozenset[int]:
    if loaded.label is not None:
        return frozenset([loaded.label])
    return frozenset(box.label for box in loaded.boxes)


def _row_groups(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row.loaded.image)
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _table(group: list[_Row]) -> pa.Table:
    boxes = np.concatenate([row.annotation.boxes for row in group])
    ends = np.cumsum([0] + [len(row.annotation) for row in group], dtype=np.int32)
    columns = [
        pa.array([row.image_id for row in group]),
        pa.array([printable(row.entry.name) for row in group]),
        pa.array([row.loaded.image for row in group], pa.binary()),
        pa.array([row.header.width for row in group], pa.int32()),
        pa.array([row.header.height for row in group], pa.int32()),
        pa.array([row.split for row in group]),
        pa.ListArray.from_arrays(ends, pa.FixedSizeListArray.from_arrays(boxes.reshape(-1), 4)),
        pa.ListArray.from_arrays(ends, np.concatenate([row.annotation.labels for row in group])),
        pa.ListArray.from_arrays(ends, np.concatenate([row.annotation.ignore for row in group])),
        pa.array([row.annotation.label for row in group], pa.int32()),
        pa.array([row.annotation.areas for row in group], pa.list_(pa.float64())),
    ]
    return pa.Table.from_arrays(columns, schema=ROWS)


def _note(group: list[_Row], result: ShardResult) -> None:
    for row in group:
        result.lengths.append(len(row.loaded.image))
        result.image_bytes += len(row.loaded.image)
        result.splits.append(row.split)
        result.digests += _digest(row)
        result.contents += row.content[:16]
        label = row.annotation.label
        labels = row.annotation.labels.tolist() if label is None else [label]
        result.boxes_per_class[row.split].update(labels)
        result.images_per_class[row.split].update(set(labels))


def _digest(row: _Row) -> bytes:
    known = (row.image_id, row.header.width, row.header.height, row.split, row.annotation.label)
    digest = hashlib.sha256(repr(known).encode())
    areas = [] if row.annotation.areas is None else [row.annotation.areas]
    for part in (row.annotation.boxes, row.annotation.labels, row.annotation.ignore, *areas):
        digest.update(struct.pack("<Q", part.nbytes))
        digest.update(part.tobytes())
    digest.update(row.content)
    return digest.digest()


def _writer_options() -> dict[str, Any]:
    """Images are compressed already: plain, uncompressed, without statistics. The small columns are packed."""
    small = [name for name in ROWS.names if name != "image"]
    nested = {
        "boxes": "boxes.list.element.list.element",
        "labels": "labels.list.element",
        "ignore": "ignore.list.element",
        "areas": "areas.list.element",
    }
    paths = [nested.get(name, name) for name in small]
    return {
        "compression": {"image": "NONE", **dict.fromkeys(paths, "ZSTD")},
        "use_dictionary": ["split"],
        "write_statistics": [path for path in paths if path not in nested.values()],
        "data_page_size": ROW_GROUP_BYTES,
        "store_schema": True,
        "write_page_checksum": True,
    }
