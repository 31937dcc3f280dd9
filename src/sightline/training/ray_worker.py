"""What runs on a Ray cluster: the workers, and the post through which they reach the driver's machine."""

import os
import threading
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train

from sightline.data.served import DirectoryServer, within_reach
from sightline.errors import SightlineError
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory
from sightline.training.collective import LostWorkers
from sightline.training.job import BEST, CHECKPOINTS, Desk, work
from sightline.training.loop import Stopped
from sightline.training.precision import pick_device
from sightline.training.process_group import ProcessGroup
from sightline.training.timing import peak_memory

BEAT_S = 1.0
FILES = "files"
"""Calls of the post that wait for a disk, several at once; all others are heard one by one, in their order."""


class Post:
    """Stands between workers anywhere and the driver: keeps the run's directory and passes messages on."""

    def __init__(self, directory: str, dataset: str) -> None:
        self._files = DirectoryServer(dataset)
        self._stores = {
            CHECKPOINTS: CheckpointDirectory(Path(directory) / CHECKPOINTS),
            BEST: CheckpointDirectory(Path(directory) / BEST, keep=1),
        }
        self._messages: list[tuple[int, str, Any]] = []
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._stop = self._over = False

    @ray.method(concurrency_group=FILES)
    def save(self, store: str, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in the run's directory; returns when it is safe."""
        with self._saving:
            self._stores[store].save(checkpoint)

    @ray.method(concurrency_group=FILES)
    def load_latest(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        with self._saving:  # A lost worker's last one may still be under way.
            return self._stores[CHECKPOINTS].load_latest()

    @ray.method(concurrency_group=FILES)
    def size(self, name: str) -> int:
        """Bytes of a file of the dataset, for a worker that does not see it."""
        return self._files.size(name)

    @ray.method(concurrency_group=FILES)
    def read(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file of the dataset."""
        return self._files.read(name, offset, length)

    def tell(self, rank: int, word: str, content: Any) -> None:
        """Leave a message for the driver."""
        with self._lock:
            self._messages.append((rank, word, content))
        self._over = self._over or word in ("done", "stopped", "failed", "crashed")

    def take(self) -> list[tuple[int, str, Any]]:
        """All messages since the last call."""
        with self._lock:
            taken, self._messages = self._messages, []
        return taken

    def beat(self, rank: int, memory: dict[str, float]) -> bool:
        """A worker lives; whether it is to stop."""
        self.tell(rank, "beat", memory)
        return self._stop

    def ask_to_stop(self) -> None:
        """Let the workers save themselves and end."""
        self._stop = True

    def is_over(self) -> bool:
        """Whether the run has ended: workers that come now have nothing to do."""
        return self._over


@dataclass
class _Store:
    """Rank 0's way to the run's directory."""

    post: Any
    name: str

    def save(self, checkpoint: Checkpoint) -> None:
        try:
            ray.get(self.post.save.remote(self.name, checkpoint))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def load_latest(self) -> Checkpoint | None:
        found: Checkpoint | None = ray.get(self.post.load_latest.remote())
        return found


@dataclass
class _Files:
    """The driver's dataset, for a worker that does not see it."""

    post: Any

    def size(self, name: str) -> int:
        return int(ray.get(self.post.size.remote(name)))

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(ray.get(self.post.read.remote(name, offset, length)))


def work_on_ray(settings: dict[str, Any]) -> None:
    """What Ray Train runs in every worker."""
    context, post, job = ray.train.get_context(), settings["post"], settings["job"]
    rank = context.get_world_rank()
    if ray.get(post.is_over.remote()):
        return
    job = replace(job, dataset=within_reach(job.dataset, _Files(post)))
    stop = threading.Event()
    threading.Thread(target=_beat, args=(post, rank, stop), daemon=True, name="sightline-beat").start()
    desk = Desk(should_stop=stop.is_set)
    if rank == 0:
        job = replace(job, weights=ray.get(settings["weights"][0]))
        desk = Desk(
            _Store(post, CHECKPOINTS), _Store(post, BEST), lambda *told: post.tell.remote(0, *told), stop.is_set
        )
    device = pick_device(job.config.train.device)
    try:
        collective = ProcessGroup()
        outcome = work(job, collective, desk, device=device)
        collective.barrier()
    except Stopped:
        ray.get(post.tell.remote(rank, "stopped", None))
    except SightlineError as error:
        ray.get(post.tell.remote(rank, "failed", error))
        raise  # Or else the others would wait for this one; started again, they find that the run is over.
    except (LostWorkers, ray.exceptions.RayError):
        raise  # Ray starts all of them again.
    except Exception:
        ray.get(post.tell.remote(rank, "crashed", traceback.format_exc()))
        raise
    else:
        if rank == 0:
            ray.get(post.tell.remote(rank, "done", outcome))


def _beat(post: Any, rank: int, stop: threading.Event) -> None:
    while True:
        try:
            if ray.get(post.beat.remote(rank, peak_memory())):
                stop.set()
        except ray.exceptions.RayActorError:
            os._exit(1)  # The driver has gone, and with it everybody who could want a result.
        time.sleep(BEAT_S)
