"""Batches of decoded, augmented images for one rank, with decoding ahead of the consumer.

Three ways to do the same work, chosen by `LoaderConfig`: in the caller's thread, in worker threads, in worker
processes. The batches are the same to the bit whichever is used, and the batches of all ranks joined in order are the
batches of a single one.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

import numpy as np

from sightline.config import AugmentConfig, Config, LoaderConfig
from sightline.data.augment import augment, keyed_generator
from sightline.data.decode import MAX_PIXELS, decode
from sightline.data.geometry import Pixels
from sightline.data.magic import EncodedImage
from sightline.data.memory import keep_freed_memory
from sightline.data.sampler import Positions, Sampler, Share, share
from sightline.errors import ImageError
from sightline.structures import Annotation, Sample

Decode = Callable[[EncodedImage], Pixels]
Transform = Callable[[Pixels, Annotation], tuple[Pixels, Annotation]]


class SampleSource(Protocol):
    """A dataset: samples by index. It is read from several threads at once, and is sent to worker processes."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Sample:
        """The sample at `index`, 0 <= index < len."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank trains on in one step; columns of equal length, empty when there are more ranks than images.

    Attributes:
        images: H x W x 3 uint8 RGB each, sizes may differ.
        annotations: What is known of each.
        image_ids: Their ids in the dataset.
        positions: int64, their places in the epoch's order.
        epoch: Number of the epoch.
        step: Number of the step, counted from where the epoch was started or resumed.
    """

    images: list[Pixels]
    annotations: list[Annotation]
    image_ids: list[str]
    positions: Positions
    epoch: int
    step: int

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Turns shares into batches: reads, decodes, augments, transforms. Has no state, so any thread or process may.

    Attributes:
        source: Where samples come from.
        seed: Of the augmentation.
        augment: What may happen to images; None for nothing.
        transform: Runs last, such as a model's own resizing.
        decode: Makes pixels of an encoded image.
    """

    source: SampleSource
    seed: int
    augment: AugmentConfig | None
    transform: Transform | None
    decode: Decode

    def __call__(self, part: Share) -> Batch:
        """Load the images of one share, or of a piece of one."""
        images, annotations, image_ids = [], [], []
        for position, index in zip(part.positions.tolist(), part.indices.tolist(), strict=True):
            sample = self.source[index]
            try:
                image, annotation = self._prepare(sample, part.epoch, position)
            except ImageError:
                raise
            except Exception as error:
                error.add_note(f"while image {sample.file_name!r} (index {index}) was prepared")
                raise
            images.append(image)
            annotations.append(annotation)
            image_ids.append(sample.image_id)
        return Batch(images, annotations, image_ids, part.positions, part.epoch, part.step)

    def _prepare(self, sample: Sample, epoch: int, position: int) -> tuple[Pixels, Annotation]:
        image, annotation = self._decode(sample), sample.annotation
        if self.augment is not None:
            rng = keyed_generator(self.seed, epoch, position)
            image, annotation = augment(
                image, annotation, config=self.augment, rng=rng, fetch=self._fetch, num_images=len(self.source)
            )
        return self.transform(image, annotation) if self.transform else (image, annotation)

    def _decode(self, sample: Sample) -> Pixels:
        try:
            return self.decode(sample.image)
        except ImageError as error:
            detail = f"{sample.file_name}: {error.detail}" if error.detail else sample.file_name
            raise ImageError(error.reason, detail, stage=error.stage) from None

    def _fetch(self, index: int) -> tuple[Pixels, Annotation]:
        sample = self.source[index]
        return self._decode(sample), sample.annotation


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How images are read.

    Attributes:
        batch: Images in one global batch, over all workers.
        config: Threads or processes that decode, and how far they work ahead.
        max_pixels: Images with more pixels are refused.
    """

    batch: int = 8
    config: LoaderConfig = field(default_factory=LoaderConfig)
    max_pixels: int = MAX_PIXELS

    @classmethod
    def of(cls, config: Config, *, batch: int = 8) -> "LoadOptions":
        """What the sections `loader` and `decode` ask for."""
        return cls(batch, config.loader, config.decode.max_pixels)


@dataclass(frozen=True)
class Loader:
    """Loads a dataset in batches.

    Attributes:
        source: The dataset.
        options: Batch size, who does the work, and which images are too large.
        seed: Of order and augmentation; any integer.
        shuffle: Whether each epoch has its own order.
        augment: Random changes to the images; None for none.
        transform: Runs last on each image and its annotation; picklable if there are processes.
        decode: Makes pixels of an encoded image, such as the canvas that a model detects on; default: the whole image.
            Annotations are left as they are. Picklable likewise.

    Example:
        >>> loader = Loader(dataset, LoadOptions(16, LoaderConfig(threads=2)), seed=0)  # doctest: +SKIP
        >>> for batch in loader.batches(epoch=0, rank=0, world_size=2):  # doctest: +SKIP
        ...     loss = model(batch.images, batch.annotations)
    """

    source: SampleSource
    options: LoadOptions
    seed: int = 0
    shuffle: bool = True
    augment: AugmentConfig | None = None
    transform: Transform | None = None
    decode: Decode | None = None

    @property
    def sampler(self) -> Sampler:
        """Which image comes at which step."""
        return Sampler(len(self.source), self.options.batch, self.seed, self.shuffle)

    def batches(
        self, epoch: int, *, rank: int = 0, world_size: int = 1, start: int = 0
    ) -> Generator[Batch, None, None]:
        """The batches of one rank, from position `start` to the end of the epoch; each step gives one, empty or not.

        Closing the iterator ends its threads or processes.

        Raises:
            ImageError: An image cannot be decoded; the message names its file.
        """
        keep_freed_memory()
        shares = self.sampler.shares(epoch, rank=rank, world_size=world_size, start=start)
        active = self.augment if self.augment is not None and self.augment.active else None
        whole = partial(decode, max_pixels=self.options.max_pixels)
        prepare = Preparer(self.source, self.seed, active, self.transform, self.decode or whole)
        config = self.options.config
        if config.processes:
            from sightline.data.worker import process_batches  # torch is slow to import, and only needed here.

            yield from process_batches(prepare, shares, config)
        elif config.threads:
            yield from _thread_batches(prepare, shares, config)
        else:
            yield from map(prepare, shares)


def _thread_batches(prepare: Preparer, shares: Iterator[Share], config: LoaderConfig) -> Iterator[Batch]:
    """Work `config.prefetch` batches ahead; results come in the order of the shares."""
    pool = ThreadPoolExecutor(config.threads, thread_name_prefix="sightline-loader")
    try:
        # A task is a piece of a share for each thread: handing over every image by itself would cost more.
        tasks = ([pool.submit(prepare, piece) for piece in _pieces(part, config.threads)] for part in shares)
        ahead = deque(islice(tasks, config.prefetch))
        while ahead:
            pieces = ahead.popleft()
            batch = _join(pieces)
            ahead.extend(islice(tasks, 1))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def _pieces(part: Share, threads: int) -> list[Share]:
    count = max(1, min(threads, len(part.positions)))
    cuts = [slice(*share(len(part.positions), rank=number, world_size=count)) for number in range(count)]
    return [Share(part.epoch, part.step, part.positions[cut], part.indices[cut]) for cut in cuts]


def _join(tasks: list[Future[Batch]]) -> Batch:
    pieces = [task.result() for task in tasks]
    if len(pieces) == 1:
        return pieces[0]
    return Batch(
        [image for piece in pieces for image in piece.images],
        [annotation for piece in pieces for annotation in piece.annotations],
        [image_id for piece in pieces for image_id in piece.image_ids],
        np.concatenate([piece.positions for piece in pieces]),
        pieces[0].epoch,
        pieces[0].step,
    )
