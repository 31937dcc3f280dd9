"""What runs on a Ray cluster: the workers, and the post through which they reach the driver's machine."""

import os
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
import ray.train
import ray.util
from ray.train.collective import broadcast_from_rank_zero
from torch._C._distributed_c10d import Store

from sightline.data.served import DirectoryServer, within_reach
from sightline.errors import SightlineError
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory
from sightline.training.collective import LostWorkers
from sightline.training.heartbeat import Activity, Heartbeat
from sightline.training.job import BEST, CHECKPOINTS, Desk, work
from sightline.training.loop import Stopped
from sightline.training.precision import pick_device
from sightline.training.process_group import joined
from sightline.training.rendezvous import bind_to_address, connect_store, file_store, serve_store
from sightline.training.timing import peak_memory

BEAT_S = 1.0
_CONTACT_S = 60.0
"""A worker that gets no answer from the driver's actor for this long ends."""
LOST = 75
Reply = Literal["go on", "stop", "exit"]
FILES = "files"
"""Calls of the post that wait for a disk, several at once; all others are heard one by one, in their order."""


class Post:
    """Stands between workers anywhere and the driver: keeps the run's directory and passes messages on."""

    def __init__(self, directory: str, dataset: str, hang_after_s: float) -> None:
        self._files, self._hang_after_s = DirectoryServer(dataset), hang_after_s
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

    def beat(self, rank: int, heartbeat: Heartbeat) -> Reply:
        """A worker lives; what it is to do."""
        self.tell(rank, "beat", heartbeat)
        return "exit" if heartbeat.hangs(self._hang_after_s) else "stop" if self._stop else "go on"

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
        try:
            found: Checkpoint | None = ray.get(self.post.load_latest.remote())
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
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
    stop, desk = threading.Event(), Desk()
    threading.Thread(
        target=_beat, args=(post, rank, desk.activity, stop), daemon=True, name="sightline-heartbeat"
    ).start()
    desk.should_stop = stop.is_set
    if rank == 0:
        desk.checkpoints, desk.best = _Store(post, CHECKPOINTS), _Store(post, BEST)
        desk.tell = lambda *told: post.tell.remote(0, *told)
    size = context.get_world_size()
    try:
        weights = ray.get(settings["weights"][0]) if rank == 0 else None
        job = replace(job, weights=weights, dataset=within_reach(job.dataset, _Files(post)))
        device = pick_device(job.config.train.device)
        with (
            _meeting(context, desk.activity) as store,
            joined(settings["backend"], store, rank=rank, size=size, activity=desk.activity) as collective,
        ):
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


@contextmanager
def _meeting(context: Any, activity: Activity) -> Iterator[Store]:
    """Where the workers of this attempt join: a file on their node if they share one, else a port of rank 0's node."""
    rank, size = context.get_world_rank(), context.get_world_size()
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    one_node = context.get_local_world_size() == size
    bind_to_address("127.0.0.1" if one_node else address)
    with tempfile.TemporaryDirectory(prefix="sightline-") as private:
        served = serve_store(address, size) if rank == 0 and not one_node else None
        with activity.waiting():
            where, port = broadcast_from_rank_zero((address, served.port) if served else (f"{private}/store", 0))
        yield served or (connect_store(where, port, size) if port else file_store(Path(where), size))


def _beat(post: Any, rank: int, activity: Activity, stop: threading.Event) -> None:
    while True:
        try:
            reply: Reply = ray.get(post.beat.remote(rank, activity.beat(peak_memory())), timeout=_CONTACT_S)
        except Exception:  # The driver's actor is gone or cannot be reached, and nobody would see this worker hang.
            traceback.print_exc()
            os._exit(LOST)
        if reply == "stop":
            stop.set()
        elif reply == "exit":
            os._exit(LOST)
        time.sleep(BEAT_S)
