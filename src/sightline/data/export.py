"""A dataset turned back into files of an annotation format."""

from collections.abc import Callable
from pathlib import Path

from sightline.data.dataset import Dataset
from sightline.data.formats.factory import make_writer
from sightline.data.formats.writing import ExportDirectory
from sightline.errors import ConfigError


def export_dataset(
    dataset: Dataset, directory: Path, format: str, *, progress: Callable[[int], None] | None = None
) -> int:
    """Write all images and annotations into a new directory; returns how many images were written."""
    if dataset.info.task != "detection":
        raise ConfigError(f"dataset {dataset.info.name!r} has no boxes to write as {format}")
    writer = make_writer(format, ExportDirectory(directory), dataset.classes)
    done = 0
    for shard in range(dataset.num_shards):
        for sample in dataset.read_shard(shard):
            writer.add(sample)
            done += 1
            if progress:
                progress(done)
    writer.close()
    return done
