"""The rows of a chunk as a Parquet file, which says whose rows they are and notices when its bytes change.

The metadata of the file has its `RowFile` under the key `sightline`. Pages have checksums of Parquet's own. The footer
has ours, in front of it, where readers of Parquet do not look. Files of the first format have nothing of all this: they
are at revision 1, and their ids are told by their rows.
"""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.detection.chunk_hash import hash_ids
from sightline.detection.schema import IMAGES
from sightline.detection.targets.target import ROW_FORMAT, refuse_newer
from sightline.errors import DamagedError

_KEY = b"sightline"
_MARK = b"SLcs"
_WORD = 4
"""Bytes of the mark, of a checksum, of the footer's length and of the magic at the end."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """What a file says of itself.

    Attributes:
        ids: The hash of its image ids (`chunk_hash`).
        writer: Who wrote this revision.
    """

    ids: str
    revision: int
    writer: str
    num_images: int


def encode_rows(rows: pa.Table, *, revision: int = 1, writer: str = "") -> bytes:
    """Rows as a Parquet file."""
    ids = hash_ids(rows.column("image_id").to_pylist())
    said = json.dumps({"format": ROW_FORMAT, "ids": ids, "revision": revision, "writer": writer})
    table = rows.cast(IMAGES).replace_schema_metadata({_KEY: said})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_statistics=True, write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    at = len(content) - 2 * _WORD - int.from_bytes(content[-2 * _WORD : -_WORD], "little")
    return content[:at] + _MARK + _checksum(content[at:]) + content[at:]  # type: ignore[no-any-return]


def read_rows(file: Path, columns: Sequence[str]) -> tuple[RowFile, pa.Table]:
    """What a file says, and some columns of it; each of its pages that is read is checked.

    Raises:
        OSError: It cannot be read.
        DamagedError: It is not what was written.
    """
    with _opened(file) as (described, parquet):
        return described, parquet.read(list(columns), use_threads=False).replace_schema_metadata()


def describe_rows(file: Path) -> RowFile:
    """What a file says; raises like `read_rows`."""
    with _opened(file) as (described, _):
        return described


@contextmanager
def _opened(file: Path) -> Iterator[tuple[RowFile, pq.ParquetFile]]:
    try:
        is_checked = _check_footer(file)
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            yield _describe(parquet, file, is_checked=is_checked), parquet
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # Of the disk; all others are of what was read.
        raise DamagedError(
            f"{str(file)!r} is not as it was written ({error}): remove it, and run the same command again"
        ) from None


def _check_footer(file: Path) -> bool:
    """Whether it has a checksum; raises ValueError if that does not match."""
    with open(file, "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(size - 2 * _WORD, 0))
        at = size - 4 * _WORD - int.from_bytes(opened.read(_WORD), "little")
        opened.seek(max(at, 0))
        mark, checksum, footer = opened.read(_WORD), opened.read(_WORD), opened.read()
    if mark != _MARK:
        return False
    if checksum != _checksum(footer):
        raise ValueError("the checksum of its footer is another")
    return True


def _describe(parquet: pq.ParquetFile, file: Path, *, is_checked: bool) -> RowFile:
    if not parquet.schema_arrow.equals(IMAGES):
        raise ValueError(f"its columns are {', '.join(parquet.schema_arrow.names)[:200]}")
    num_images, text = parquet.metadata.num_rows, (parquet.metadata.metadata or {}).get(_KEY)
    if (text is not None) != is_checked:
        raise ValueError("its footer has lost its checksum")
    if text is None:
        ids = parquet.read(["image_id"], use_threads=False).column(0).to_pylist()
        return RowFile(hash_ids(ids), 1, "", num_images)
    said = json.loads(text)
    refuse_newer(said["format"], str(file))
    return RowFile(said["ids"], said["revision"], said["writer"], num_images)


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_WORD, "little")
