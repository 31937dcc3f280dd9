"""The stored form of a dataset: columns of its shards, its index and rejects, and `dataset.json`."""

import json
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from sightline.data.storage import NOT_FOUND, Folder, ask_patiently
from sightline.errors import DamagedError, ImageError, NotFoundError, SourceError, StorageError
from sightline.retry import STORAGE_RETRY

FORMAT_VERSION = 2
"""2: `areas` of boxes, and `content` in the index. Datasets of format 1, which have neither, are read too."""
MANIFEST = "dataset.json"
INDEX = "index.arrow"
REJECTS = "rejects.parquet"

ROWS = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("file_name", pa.string(), nullable=False),
        pa.field("image", pa.binary(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("boxes", pa.list_(pa.list_(pa.float32(), 4)), nullable=False),
        pa.field("labels", pa.list_(pa.int32()), nullable=False),
        pa.field("ignore", pa.list_(pa.bool_()), nullable=False),
        pa.field("label", pa.int32()),
        pa.field("areas", pa.list_(pa.float64())),
    ]
)
"""One row is one image. `areas` is null where the source gives no areas of its own."""

INDEX_ROWS = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("split", pa.int16(), nullable=False),
        pa.field("content", pa.binary(16), nullable=False),
    ]
)
"""Where the encoded bytes of each image lie within its shard, in row order; `split` indexes the manifest's splits, and
`content` is the beginning of their SHA-256."""

REJECT_ROWS = pa.schema([(name, pa.string()) for name in ("file_name", "stage", "reason", "detail", "action")])


class ShardInfo(BaseModel):
    """One Parquet file of a dataset."""

    model_config = ConfigDict(frozen=True)

    file: str
    rows: int
    bytes: int


class SplitInfo(BaseModel):
    """Counts of one split; boxes by class include those to ignore."""

    model_config = ConfigDict(frozen=True)

    images: int = 0
    boxes: int = 0
    boxes_per_class: dict[str, int] = {}
    images_per_class: dict[str, int] = {}


class DatasetInfo(BaseModel):
    """What `dataset.json` holds.

    Attributes:
        content_hash: SHA-256 over class names and all rows in order; the same for the same content.
        rejected: How many images, boxes and files were rejected, repaired or skipped, by action and reason.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = FORMAT_VERSION
    name: str
    task: Literal["detection", "classification"]
    classes: tuple[str, ...]
    num_images: int
    num_boxes: int
    splits: dict[str, SplitInfo]
    content_hash: str
    source: str
    source_format: str
    rejected: dict[str, dict[str, int]]
    image_bytes: int
    shards: tuple[ShardInfo, ...]
    created: str
    sightline_version: str
    config: dict[str, object] = {}

    @property
    def num_rejected_images(self) -> int:
        """Images of the source that are not in the dataset."""
        return sum(self.rejected.get("image rejected", {}).values())


def has_manifest(folder: Folder) -> bool:
    """Whether a folder is a dataset; a disk or bucket that fails for a while is asked again."""
    return ask_patiently(lambda: folder.is_file(MANIFEST), what=f"looking for {folder.location}/{MANIFEST}")


def read_manifest(folder: Folder) -> DatasetInfo:
    """Read `dataset.json`; a folder without one is not a dataset, for it is written last.

    Raises:
        NotFoundError: There is none.
        StorageError: The disk or bucket cannot be read, which says nothing about the dataset.
        DamagedError: It is not one that this version reads.
    """
    text = _read_patiently(folder)
    try:
        version = json.loads(text)["format_version"]
        if version not in range(1, FORMAT_VERSION + 1):  # First: other fields of a newer format may differ, too.
            raise DamagedError(
                f"dataset {folder.location!r} has format version {str(version)[:20]}, this Sightline reads 1 to "
                f"{FORMAT_VERSION}: install the version of Sightline that wrote it, or ingest the source again"
            )
        return DatasetInfo.model_validate_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder.location}/{MANIFEST} cannot be read: {error}") from None


def _read_patiently(folder: Folder) -> bytes:
    place = f"{folder.location}/{MANIFEST}"
    try:
        return ask_patiently(lambda: folder.read(MANIFEST), what=f"reading {place}")
    except SourceError as error:  # Not as one of the source of a job, which would be tried for another minute.
        raise StorageError(f"{place} could not be read for {STORAGE_RETRY.give_up_after_s:g} s: {error}") from error
    except ImageError as error:
        if error.reason != NOT_FOUND:
            raise StorageError(f"{place} cannot be read: {error}") from error
        raise NotFoundError(
            f"there is no dataset at {folder.location!r} (no {MANIFEST}): `sightline datasets` lists what there is, "
            "`sightline ingest SOURCE --to NAME` makes one"
        ) from None
