"""What a worker does with a chunk: read, decode, fit, detect. The same in the process, in a child and on Ray.

Threads decode ahead of the network. Two chunks may be under way at once: while one goes through the network, the first
images of the next are decoded, so that the network never waits at the end of a chunk.
"""

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sightline.data.decode import decode
from sightline.data.memory import keep_freed_memory
from sightline.detection.item import Item, Source
from sightline.detection.rows import ModelName, Rows
from sightline.detection.tiles import Tile, Tiling, merge_tiles
from sightline.engines.settings import InferenceSettings
from sightline.errors import BrokenModelError, ImageError, SourceError, WorkerError
from sightline.models.predictor import Predictor
from sightline.models.preprocessor import PreparedImage
from sightline.retry import STORAGE_RETRY


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An image that was decoded and fitted, as a whole or in tiles."""

    width: int
    height: int
    parts: list[PreparedImage]
    tiles: list[Tile] | None = None


@dataclass(slots=True)
class _Open:
    """An image some of whose parts are still to go through the network."""

    place: int
    prepared: _Prepared
    found: list[Any]


class Closed(Exception):
    """Nobody wants the chunk any more."""


@dataclass
class Worker:
    """Looks at chunks.

    Attributes:
        done: Images, tiles and repeated attempts so far, for those who watch whether it gets on.
    """

    predictor: Predictor
    source: Source
    settings: InferenceSettings
    model: ModelName
    done: int = 0
    closed: bool = False
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        keep_freed_memory()
        settings = self.settings
        self._tiling = Tiling(settings.tile, settings.overlap or 0.0) if settings.tile else None
        self._pool = ThreadPoolExecutor(settings.decoders, thread_name_prefix="sightline-decode")
        self._streams = ThreadPoolExecutor(settings.streams, thread_name_prefix="sightline-network")

    def process(self, chunk: str, items: Sequence[Item]) -> pa.Table:
        """The rows of a chunk's images.

        Raises:
            SourceError: The source cannot be read.
            BrokenModelError: The model fails over any image.
            WorkerError: This machine has no memory.
        """
        rows = Rows(items, chunk, self.model)
        prepared = self._prepare_ahead(items)
        with self._turn:
            _Batches(self, rows).run(prepared)
        return rows.table()

    def check_model(self) -> None:
        """Let the model look at a blank image.

        Raises:
            WorkerError: It cannot. Whatever breaks a model that could, it is not the model or the machine alone.
        """
        try:
            self.find([self.predictor.prepare(np.zeros((64, 64, 3), np.uint8))]).result()
        except Exception as error:  # Whatever a network raises.
            raise WorkerError(f"the model fails over a blank image on this machine: {_describe(error)}") from error

    def find(self, fitted: list[PreparedImage]) -> "Future[Any]":
        """What is in some images of one size, when their turn has come."""
        return self._streams.submit(self.predictor.detect, fitted, self.settings.threshold)

    def close(self) -> None:
        """End the threads; a chunk that is under way is given up."""
        self.closed = True
        for pool in (self._pool, self._streams):
            pool.shutdown(wait=False, cancel_futures=True)  # A read may hang, or be tried again for a minute.
        self.predictor.close()

    def _prepare_ahead(self, items: Sequence[Item]) -> Iterator[tuple[int, "_Prepared | ImageError"]]:
        """Every image in order; some of the next are under way, from the moment of the call."""
        # Tiles hold on to the whole image.
        own = self.settings
        ahead = 1 + own.decoders if own.tile else 2 * own.batch * own.streams + 2 * own.decoders
        waiting: deque[Future[_Prepared | ImageError]] = deque(
            self._pool.submit(self._prepare, item) for item in items[:ahead]
        )

        def stream() -> Iterator[tuple[int, _Prepared | ImageError]]:
            for place in range(len(items)):
                result = waiting.popleft().result()
                if place + ahead < len(items):
                    waiting.append(self._pool.submit(self._prepare, items[place + ahead]))
                yield place, result

        return stream()

    def _prepare(self, item: Item) -> "_Prepared | ImageError":
        """An image, or why it cannot be used. What is no fault of the image is tried again, and raised if it persists.

        Raises:
            SourceError: The source cannot be read.
            WorkerError: The machine has no memory left; `decode.max_pixels` bounds what one image takes.
        """
        try:
            return STORAGE_RETRY.call(
                lambda: self._fit(self.source.read(item)), what=f"reading {item.uri}", passes=self._may_pass
            )
        except ImageError as error:
            return error
        except MemoryError:
            raise WorkerError(
                f"there is not enough memory on this machine to read and decode {item.uri!r}: run the same command "
                "with fewer workers or a smaller detect.batch; a lower decode.max_pixels rejects images that are larger"
            ) from None

    def _may_pass(self, error: BaseException) -> bool:
        self.done += 1  # Whoever waits for the source does not hang.
        return isinstance(error, SourceError | MemoryError) and not self.closed

    def _fit(self, data: bytes) -> _Prepared:
        predictor, tiling = self.predictor, self._tiling
        if tiling is None:
            fitted = predictor.prepare_encoded(data)
            return _Prepared(fitted.width, fitted.height, [fitted])
        pixels = decode(data, max_pixels=predictor.preprocessor.max_pixels)
        height, width = pixels.shape[:2]
        tiles = tiling.tiles(width=width, height=height)
        return _Prepared(width, height, [predictor.prepare(pixels[y0:y1, x0:x1]) for x0, y0, x1, y1 in tiles], tiles)


_Batch = list[tuple[_Open, int]]
"""Images, and which part of each."""


class _Batches:
    """Collects parts of the same size until a batch is full; an image all of whose parts are done gets its row."""

    def __init__(self, worker: Worker, rows: Rows) -> None:
        self._worker, self._rows = worker, rows
        self._waiting: dict[tuple[int, ...], _Batch] = {}
        self._under_way: deque[tuple[_Batch, Future[Any]]] = deque()

    def run(self, prepared: Iterator[tuple[int, _Prepared | ImageError]]) -> None:
        for place, result in prepared:
            if self._worker.closed:
                raise Closed
            if isinstance(result, ImageError):
                self._reject(place, result)
                continue
            image = _Open(place, result, [None] * len(result.parts))
            for part in range(len(result.parts)):
                self._add(image, part)
        for shape in list(self._waiting):
            self._detect(self._waiting.pop(shape))
        while self._under_way:
            self._collect()

    def _add(self, image: _Open, part: int) -> None:
        shape = image.prepared.parts[part].canvas.shape
        batch = self._waiting.setdefault(shape, [])
        batch.append((image, part))
        if len(batch) >= self._worker.settings.batch:
            self._detect(self._waiting.pop(shape))

    def _detect(self, batch: _Batch) -> None:
        """Submit a batch; one more is submitted than there are streams, so that none waits for this thread."""
        fitted = [image.prepared.parts[part] for image, part in batch]
        self._under_way.append((batch, self._worker.find(fitted)))
        if len(self._under_way) > self._worker.settings.streams:
            self._collect()

    def _collect(self) -> None:
        """Wait for the first batch that is under way."""
        batch, found_later = self._under_way.popleft()
        try:
            found = found_later.result()
        except CancelledError:
            raise Closed from None
        except Exception:  # Whatever a network raises.
            if len(batch) > 1:
                for one in batch:
                    self._detect([one])
                return
            found = self._try_again(*batch[0])
            if found is None:
                return
        for (image, part), result in zip(batch, found, strict=True):
            self._worker.done += 1
            image.found[part] = result
            if image.place >= 0 and all(part is not None for part in image.found):
                self._finish(image)

    def _try_again(self, image: _Open, part: int) -> Any:
        """What the network finds at the second attempt; None if it fails over this image only, which is then rejected.

        Raises:
            BrokenModelError: It fails over a blank image of this size too.
            WorkerError: It has no memory.
        """
        if self._worker.closed:
            raise Closed
        fitted = image.prepared.parts[part]
        blank = replace(fitted, canvas=np.zeros_like(fitted.canvas))
        try:
            self._worker.find([blank]).result()
        except CancelledError:
            raise Closed from None
        except Exception as also:
            if is_out_of_memory(also):
                raise _no_memory(also) from None
            raise BrokenModelError(
                f"the model fails over any image in this process: {_describe(also)}. Run the same command again: the "
                "images that were under way are then tried apart"
            ) from None
        try:
            return self._worker.find([fitted]).result()
        except CancelledError:
            raise Closed from None
        except Exception as again:
            if is_out_of_memory(again):
                raise _no_memory(again) from None
            self._fail(image, _describe(again))
            return None

    def _fail(self, image: _Open, why: str) -> None:
        if image.place >= 0:
            self._reject(image.place, ImageError("model failed", why, stage="detect"))
            image.place = -1  # Other tiles of it may still come.

    def _finish(self, image: _Open) -> None:
        prepared = image.prepared
        parts = [part for part in image.found if part is not None]
        result = merge_tiles(parts, prepared.tiles) if prepared.tiles and len(parts) > 1 else parts[0]
        self._rows.detected(image.place, result, width=prepared.width, height=prepared.height)

    def _reject(self, place: int, error: ImageError) -> None:
        self._rows.rejected(place, error)
        self._worker.done += 1


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or torch where it is loaded, says that there is not enough memory."""
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))


def _no_memory(error: Exception) -> WorkerError:
    return WorkerError(f"there is not enough memory for the model on this machine: {_describe(error)}")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
