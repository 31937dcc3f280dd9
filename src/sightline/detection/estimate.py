"""What a job would take, before it begins: `--dry-run` lists the images, looks at a few, and writes nothing."""

import random
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sightline.data.parallel import num_cores
from sightline.detection.detect import JobSpec
from sightline.detection.item import Item
from sightline.detection.targets.row_file import encode_rows

_WARM_UP, _MEASURED = 4, 24
_MOST_S = 20.0


@dataclass(frozen=True)
class Estimate:
    """What was measured on a sample, and what follows for all.

    Attributes:
        images: Of the source.
        measured: Of them, images that were looked at.
        rejected: Of those, images that could not be used.
        images_per_s: By all workers together, if they do not hinder each other.
        memory: Bytes that a worker took.
        written: Bytes of Parquet for all rows.
    """

    images: int
    measured: int
    rejected: int
    images_per_s: float
    memory: int
    written: int
    workers: int
    engine: str

    @property
    def seconds(self) -> float:
        """For all images, once the workers have started."""
        return self.images / self.images_per_s if self.images_per_s else 0.0


def estimate(spec: JobSpec) -> Estimate:
    """List everything, and look at a few images chosen at random, as one of the workers would."""
    config = spec.config
    threads = config.threads or max(1, num_cores() // config.workers)
    worker_spec = replace(spec.worker, settings=replace(spec.worker.settings, threads=threads))
    images, sample = _sample(worker_spec.source.items(), _WARM_UP + _MEASURED)
    if not images:
        return Estimate(0, 0, 0, 0.0, 0, 0, config.workers, worker_spec.settings.engine)
    worker = worker_spec.worker_of(worker_spec.open(spec.bundle, spec.cache))
    worker.process("warm-up", sample[:_WARM_UP])
    began, done, rejected, written = time.perf_counter(), 0, 0, 0
    for start in range(_WARM_UP if len(sample) > _WARM_UP else 0, len(sample), 8):
        rows = worker.process("sample", sample[start : start + 8])
        done += rows.num_rows
        rejected += rows.column("status").to_pylist().count("rejected")
        written += len(encode_rows(rows))
        if time.perf_counter() - began > _MOST_S:
            break
    rate = done / (time.perf_counter() - began) * config.workers
    worker.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Estimate(
        images,
        done,
        rejected,
        rate,
        memory,
        round(written / done * images),
        config.workers,
        worker_spec.settings.engine,
    )


def _sample(items: Iterator[Item], count: int) -> tuple[int, tuple[Item, ...]]:
    """How many there are, and some of them, each as likely as any other."""
    dice, number = random.Random(0), 0
    kept: list[Item] = []
    for number, item in enumerate(items, 1):
        if len(kept) < count:
            kept.append(item)
        elif (place := dice.randrange(number)) < count:
            kept[place] = item
    return number, tuple(kept)
