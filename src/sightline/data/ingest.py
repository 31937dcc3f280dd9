"""Annotated images become a dataset: entries are cut into shards, workers write them, the manifest comes last."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import sightline
from sightline.config import Config
from sightline.data.formats.layout import LINK_ADVICE
from sightline.data.location import without_secrets
from sightline.data.parallel import run_in_order
from sightline.data.reach import check_reach
from sightline.data.record import Entry, Reader, Reject
from sightline.data.schema import (
    INDEX,
    INDEX_ROWS,
    MANIFEST,
    REJECT_ROWS,
    REJECTS,
    DatasetInfo,
    ShardInfo,
    SplitInfo,
)
from sightline.data.shard import ShardOptions, ShardResult, printable, scan_entries, write_shard
from sightline.data.split import HashSplitter, Splitter, StratifiedSplitter, parse_fractions
from sightline.data.storage import LINK_REASONS, ask_patiently
from sightline.data.target import DatasetTarget
from sightline.errors import FormatError, TooManyRejectedError

Progress = Callable[[int, int], None]
"""Called with (images done, images rejected) as work goes on."""

FIRST_SHARD_BYTES = 8 << 20
LAST_SHARD_BYTES = 128 << 20
MAX_SHARD_ENTRIES = 4096
MAX_SPLITS = 1000
_REJECTS_AT_ONCE = 1000
_MISSED = {"no label file", "folder or list not found"}


@dataclass(frozen=True, slots=True)
class Source:
    """A reader and how it is described in the manifest."""

    reader: Reader
    location: str
    format: str


def write_dataset(
    source: Source, target: DatasetTarget, config: Config, progress: Progress | None = None
) -> DatasetInfo:
    """Write all that the reader lists; the dataset is complete or absent."""
    options = _options(source.reader, config)
    tally = _Tally(source.reader.classes)
    with target.open() as directory, _Side(directory) as side:
        tasks = _tasks(source.reader, directory, options, side, tally)
        for result in run_in_order(write_shard, tasks, workers=config.ingest.workers):
            side.add_shard(result, tally.add(result))
            side.add_rejects(result.rejects)
            target.publish(result.file, keep=result.num_rows > 0)
            if progress:
                progress(tally.num_images, tally.num_rejected)
        if tally.missed:  # It may not have been there for a moment only, while a disk was away.
            disks = [folder for folder in source.reader.folders if folder.is_local]
            ask_patiently(lambda: check_reach(disks), what=f"looking for {source.location}")
        _refuse_bad_outcome(tally, source, config)
        info = _describe(source, target, config, tally)
        side.close()
        target.publish(INDEX)
        target.publish(REJECTS)
        (directory / MANIFEST).write_text(json.dumps(info.model_dump(mode="json"), indent=2) + "\n", "utf-8")
        target.publish(MANIFEST)
    return info


def check_settings(config: Config) -> None:
    """Raise for settings that could only fail later, before any work is done."""
    parse_fractions(config.ingest.split or config.ingest.default_split)


def shard_limits() -> Iterator[int]:
    """Bytes for each shard in turn: small sets get several files, large ones not too many."""
    number = 0
    while True:
        yield min(FIRST_SHARD_BYTES << (number // 4), LAST_SHARD_BYTES)
        number += 1


def cut_into_shards(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Group entries by their sizes, independent of the number of workers."""
    limits = shard_limits()
    limit, size, group = next(limits), 0, list[Entry]()
    for entry in entries:
        group.append(entry)
        size += entry.size or 100_000
        if size >= limit or len(group) == MAX_SHARD_ENTRIES:
            yield group
            limit, size, group = next(limits), 0, []
    if group:
        yield group


def _tasks(
    reader: Reader, directory: Path, options: ShardOptions, side: "_Side", tally: "_Tally"
) -> Iterator[tuple[Any, ...]]:
    def only_entries() -> Iterator[Entry]:
        for found in reader.entries():
            if isinstance(found, Reject):
                tally.reject([found])
                side.add_rejects([found])
            else:
                yield found

    for number, entries in enumerate(cut_into_shards(only_entries())):
        yield reader, entries, directory / f"shard-{number:05d}.parquet", options


def _options(reader: Reader, config: Config) -> ShardOptions:
    ingest = config.ingest
    fractions = parse_fractions(ingest.split or ingest.default_split)
    splitter: Splitter = HashSplitter.from_fractions(fractions)
    if ingest.stratify:
        entries = (found for found in reader.entries() if isinstance(found, Entry))
        tasks = ((reader, group) for group in cut_into_shards(entries))
        scans = run_in_order(scan_entries, tasks, workers=ingest.workers)
        splitter = StratifiedSplitter.from_images(fractions, (image for scan in scans for image in scan))
    return ShardOptions(splitter, ingest.split is None, ingest.verify, config.decode.max_pixels)


@dataclass
class _Tally:
    """Counts that grow with every shard, in order; memory does not grow with the number of images."""

    classes: tuple[str, ...]
    num_images: int = 0
    num_boxes: int = 0
    num_rejected: int = 0
    image_bytes: int = 0
    missed: bool = False
    """Whether anything was not found."""
    link: str = ""
    """The first link that was not followed."""
    shards: list[ShardInfo] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    images: Counter[str] = field(default_factory=Counter)
    boxes_per_class: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    images_per_class: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    rejected: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def __post_init__(self) -> None:
        self._hash = hashlib.sha256(json.dumps(self.classes).encode())

    @property
    def content_hash(self) -> str:
        return self._hash.hexdigest()

    def add(self, result: ShardResult) -> int:
        """Count a shard; returns its number among those that hold anything."""
        self._hash.update(result.digests)
        self.num_images += result.num_rows
        self.image_bytes += result.image_bytes
        for split, images in Counter(result.splits).items():
            self.splits.setdefault(split, len(self.splits))
            if len(self.splits) > MAX_SPLITS:
                raise FormatError(f"more than {MAX_SPLITS} splits, the last {split!r}: is that column a split?")
            self.images[split] += images
            self.num_boxes += result.boxes_per_class[split].total()
            self.boxes_per_class[split] += result.boxes_per_class[split]
            self.images_per_class[split] += result.images_per_class[split]
        self.reject(result.rejects)
        if result.num_rows:
            self.shards.append(ShardInfo(file=result.file, rows=result.num_rows, bytes=result.bytes))
        return len(self.shards) - 1

    def reject(self, rejects: list[Reject]) -> None:
        for reject in rejects:
            self.rejected[reject.action][reject.reason] += 1
            self.num_rejected += reject.action == "image rejected"
            self.missed = self.missed or reject.stage == "read" or reject.reason in _MISSED
            if reject.reason in LINK_REASONS and not self.link:
                self.link = reject.name

    def split_infos(self, task: str) -> dict[str, SplitInfo]:
        def named(counts: Counter[int]) -> dict[str, int]:
            return {name: counts[label] for label, name in enumerate(self.classes) if counts[label]}

        detection = task == "detection"
        return {
            split: SplitInfo(
                images=self.images[split],
                boxes=self.boxes_per_class[split].total() if detection else 0,
                boxes_per_class=named(self.boxes_per_class[split]) if detection else {},
                images_per_class=named(self.images_per_class[split]),
            )
            for split in self.splits
        }


class _Side:
    """The small files beside the shards, written as results come in."""

    def __init__(self, directory: Path) -> None:
        self._index = pa.ipc.new_file(str(directory / INDEX), INDEX_ROWS)
        self._rejects = pq.ParquetWriter(directory / REJECTS, REJECT_ROWS, compression="zstd")
        self._splits: dict[str, int] = {}
        self._waiting: list[Reject] = []

    def __enter__(self) -> "_Side":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_shard(self, result: ShardResult, number: int) -> None:
        if not result.num_rows:
            return
        splits = [self._splits.setdefault(split, len(self._splits)) for split in result.splits]
        columns = [
            pa.array([number] * result.num_rows, pa.int32()),
            pa.array(result.offsets, pa.int64()),
            pa.array(result.lengths, pa.int64()),
            pa.array(splits, pa.int16()),
            pa.Array.from_buffers(pa.binary(16), result.num_rows, [None, pa.py_buffer(result.contents)]),
        ]
        self._index.write_batch(pa.record_batch(columns, schema=INDEX_ROWS))

    def add_rejects(self, rejects: list[Reject]) -> None:
        self._waiting += rejects
        if len(self._waiting) >= _REJECTS_AT_ONCE:
            self._write_rejects()

    def _write_rejects(self) -> None:
        if self._waiting:
            rows = [(printable(r.name), r.stage, r.reason, printable(r.detail), r.action) for r in self._waiting]
            columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
            self._rejects.write_table(pa.Table.from_arrays(columns, schema=REJECT_ROWS))
        self._waiting = []

    def close(self) -> None:
        self._write_rejects()
        self._index.close()
        self._rejects.close()


def _refuse_bad_outcome(tally: _Tally, source: Source, config: Config) -> None:
    total = tally.num_images + tally.num_rejected
    reasons = ", ".join(
        f"{count} x {reason}" for reason, count in Counter(tally.rejected.get("image rejected", {})).most_common(3)
    )
    advice = f". {tally.link!r} is a link or leads out of the source: {LINK_ADVICE}" if tally.link else ""
    if total == 0:
        raise FormatError(f"no images found in {source.location!r} read as {source.format}{advice}")
    if tally.num_images == 0:
        raise TooManyRejectedError(f"none of the {total} images in {source.location!r} can be used: {reasons}{advice}")
    if tally.num_rejected > config.ingest.max_rejected * total:
        raise TooManyRejectedError(
            f"{tally.num_rejected} of {total} images cannot be used ({reasons}), more than the allowed share of "
            f"{config.ingest.max_rejected:g}: mend them, or allow more with --max-rejected{advice}"
        )


def _describe(source: Source, target: DatasetTarget, config: Config, tally: _Tally) -> DatasetInfo:
    task = source.reader.task
    return DatasetInfo(
        name=target.name,
        task=task,
        classes=source.reader.classes,
        num_images=tally.num_images,
        num_boxes=tally.num_boxes if task == "detection" else 0,
        splits=tally.split_infos(task),
        content_hash=tally.content_hash,
        source=source.location,
        source_format=source.format,
        rejected={action: dict(sorted(reasons.items())) for action, reasons in sorted(tally.rejected.items())},
        image_bytes=tally.image_bytes,
        shards=tuple(tally.shards),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sightline_version=sightline.__version__,
        config=_written_config(config),
    )


def _written_config(config: Config) -> dict[str, object]:
    ingest = config.ingest.model_dump(mode="json")
    if ingest["images"]:
        ingest["images"] = without_secrets(ingest["images"])
    return {"ingest": ingest, "decode": config.decode.model_dump(mode="json")}
