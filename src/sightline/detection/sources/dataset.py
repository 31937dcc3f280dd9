"""The images of a Sightline dataset, by name, path or URL."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.data.dataset import Dataset
from sightline.data.schema import MANIFEST, ROWS, ShardInfo, read_manifest
from sightline.data.stored_file import StoredFile
from sightline.detection.item import Item
from sightline.detection.sources.names import open_folder, shown
from sightline.detection.sources.where import Condition
from sightline.errors import DamagedError, ImageError

_COLUMNS = ["image_id", "file_name", "width", "height", "split", "label"]
_BATCH_ROWS = 1 << 14


class DatasetSource:
    """Its rows in the order they are stored, or those that meet a condition; ids are the dataset's own."""

    def __init__(self, location: str, where: str | None = None) -> None:
        self._folder, self._public = open_folder(location)
        self._where = where
        self._dataset = Dataset(self._folder, read_manifest(self._folder))
        self._condition()

    @property
    def name(self) -> str:
        """Place, content and condition: rows are read by their number, so another content is another source."""
        content = f"{self._public}@{self._dataset.info.content_hash[:16]}"
        return shown(f"{content} where {self._where}" if self._where else content)

    def items(self) -> Iterator[Item]:
        """Streams the small columns; images are not touched."""
        condition = self._condition()
        first = 0
        for shard in self._dataset.info.shards:
            for batch in self._batches(shard, condition):
                ids, names = (batch.column(name).to_pylist() for name in ("image_id", "file_name"))
                for row in condition.rows(batch) if condition else range(batch.num_rows):
                    yield Item(ids[row], shown(f"{self._public}/{names[row]}"), "", str(first + row))
                first += batch.num_rows

    def read(self, item: Item) -> bytes:
        """The bytes as they are stored; a file that is out of reach is tried again, as in training.

        Raises:
            StorageError: It stays out of reach.
        """
        row = int(item.ref)
        try:
            index = self._dataset._index
            # Dataset[row] would keep the annotations of all shards in memory.
            shard, offset, length = (int(column[row]) for column in (index.shard, index.offset, index.length))
            return bytes(self._dataset._shards.image(shard, offset, length))
        except (OSError, DamagedError, IndexError) as error:
            raise ImageError("damaged dataset", str(error)[:300], stage="read") from None

    def is_visible(self) -> bool:
        """Whether its folder is there; buckets are everywhere."""
        return not self._folder.is_local or self._folder.is_folder()

    def _condition(self) -> Condition | None:
        return Condition(self._where, pa.schema([ROWS.field(name) for name in _COLUMNS])) if self._where else None

    def _batches(self, shard: ShardInfo, condition: Condition | None) -> Iterator[pa.RecordBatch]:
        columns = sorted({"image_id", "file_name", *(condition.columns if condition else ())})
        try:
            with pq.ParquetFile(StoredFile(self._folder, shard.file, beside=MANIFEST)) as parquet:
                if parquet.metadata.num_rows != shard.rows:
                    raise ValueError(f"{parquet.metadata.num_rows} rows instead of {shard.rows}")
                yield from parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DamagedError(f"{self._public}/{shard.file} is not the file that was written: {error}") from None
