"""Where the time of a run goes, over all the processes that it took."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.tracking.machine import peak_memory_mb
from sightline.training.collective import Collective
from sightline.training.messages import PARTS, TRAINING

FILE = "timing.json"


class TimedCollective:
    """A collective that measures how long its all-reduces take, without waiting for a GPU.

    On a GPU, an event before and one after each all-reduce take their time when the device reaches them. They are read
    once they have happened: the loop reads every loss, so the events of a step have happened by its end.
    """

    def __init__(self, inner: Collective) -> None:
        self._inner = inner
        self._seconds = 0.0
        self._pending: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self._inner.size

    @property
    def seconds(self) -> float:
        """Time of all all-reduces that have completed."""
        done = [pair for pair in self._pending if pair[1].query()]  # type: ignore[no-untyped-call]
        self._pending = self._pending[len(done) :]  # They complete in order.
        self._seconds += sum(start.elapsed_time(end) for start, end in done) / 1000
        return self._seconds

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all workers, in place; waiting for the slowest of them counts."""
        if self.size == 1:
            return self._inner.all_reduce(tensor)
        if tensor.is_cuda:
            return self._all_reduce_on_gpu(tensor)
        started = time.perf_counter()
        summed = self._inner.all_reduce(tensor)
        self._seconds += time.perf_counter() - started
        return summed

    def _all_reduce_on_gpu(self, tensor: Tensor) -> Tensor:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(tensor.device)
        start.record(stream)
        summed = self._inner.all_reduce(tensor)
        end.record(stream)
        self._pending.append((start, end))
        return summed

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor, in place."""
        return self._inner.broadcast(tensor)

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, by rank."""
        return self._inner.gather(value)

    def barrier(self) -> None:
        """Wait until every worker is here."""
        self._inner.barrier()


class Timing:
    """Seconds by part and images trained on: those of this process, and of the run's processes before it."""

    def __init__(self, directory: Path, seconds: dict[str, float]) -> None:
        self._file, self._own = directory / FILE, seconds
        self._before: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.images = 0
        try:
            noted = json.loads(self._file.read_text("utf-8"))
            self.images, self._before = int(noted["images"]), self._before | noted["seconds"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # None yet, or torn by a crash: the time of this process is known all the same.

    @property
    def seconds(self) -> dict[str, float]:
        """By part, of the whole run so far."""
        return {name: self._before[name] + self._own[name] for name in PARTS}

    @property
    def training_s(self) -> float:
        """Of the steps alone."""
        return sum(self.seconds[name] for name in TRAINING)

    @property
    def total_s(self) -> float:
        """Of the whole run: training, evaluation and checkpoints, without the pauses between processes."""
        return sum(self.seconds.values())

    @property
    def images_per_s(self) -> float:
        """Images trained on in a second of training."""
        return self.images / self.training_s if self.training_s else 0.0

    def save(self) -> None:
        """Note it for the next process and for people."""
        noted = {"images": self.images, "images_per_s": round(self.images_per_s, 3), "seconds": self.seconds}
        partial = self._file.with_suffix(".tmp")
        partial.write_text(json.dumps(noted, indent=2) + "\n", "utf-8")
        partial.replace(self._file)


def peak_memory() -> dict[str, float]:
    """The most memory that this process has held, and on its GPU if it uses one.

    All GPUs are asked: the current one is a setting of a thread, and heartbeats come from another thread than training.
    """
    held = {"peak_memory_mb": peak_memory_mb()}
    if torch.cuda.is_available():
        on_gpu = max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())), default=0)
        if on_gpu:
            held["peak_gpu_memory_mb"] = on_gpu / (1 << 20)
    return held
