"""What runs on a Ray cluster: the workers, and the actor through which they reach the driver's machine."""

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
from sightline.errors import SightlineError, StaleAttemptError, Stopped
from sightline.training.attempt import AttemptFence
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory
from sightline.training.collective import WorkerLostError
from sightline.training.context import WorkerContext
from sightline.training.heartbeat import Activity
from sightline.training.job import work
from sightline.training.messages import Alive, Crashed, Failed, Finished, Interrupted, Message, Origin
from sightline.training.precision import pick_device
from sightline.training.process_group import joined
from sightline.training.rendezvous import bind_to_address, connect_store, file_store, serve_store
from sightline.training.timing import peak_memory
from sightline.workspace import BEST, CHECKPOINTS

BEAT_S = 1.0
_CONTACT_S = 60.0
"""A worker that gets no answer from the driver's actor for this long ends."""
LOST = 75
Reply = Literal["continue", "stop", "exit"]
FILES = "files"
"""Calls of the actor that wait for a disk, several at once; all others are handled one by one, in their order."""


class DriverActor:
    """Stands between workers anywhere and the driver: keeps the run's directory and passes messages on."""

    def __init__(self, directory: str, dataset: str) -> None:
        self._directory, self._files = Path(directory), DirectoryServer(dataset)
        self._fence = AttemptFence(self._directory)
        self._attempt = 0
        self._stores: dict[str, CheckpointDirectory] = {}
        self._messages: list[tuple[Message, float]] = []
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._ending: set[tuple[int, int]] = set()
        self._stop = self._over = False

    @ray.method(concurrency_group=FILES)
    def begin_attempt(self) -> Origin:
        """Workers have started; messages and checkpoints of earlier ones are refused from now on."""
        with self._saving:  # A lost worker's last checkpoint may still be under way, and counts.
            attempt = self._fence.advance()
            self._stores = {
                name: CheckpointDirectory(self._directory / name, keep=keep, fence=self._fence, attempt=attempt)
                for name, keep in ((CHECKPOINTS, 2), (BEST, 1))
            }
            self._attempt = attempt
        return self.origin()

    def origin(self) -> Origin:
        """Of the newest attempt."""
        return Origin(self._directory.name, self._attempt)

    @ray.method(concurrency_group=FILES)
    def save(self, name: str, checkpoint: Checkpoint, attempt: int) -> None:
        """Keep a checkpoint in the run's directory; returns when it is safe."""
        with self._saving:
            if attempt != self._attempt:
                raise StaleAttemptError(f"attempt {attempt} was replaced by attempt {self._attempt}: it saves nothing")
            self._stores[name].save(checkpoint)

    @ray.method(concurrency_group=FILES)
    def load_latest(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        with self._saving:
            return self._stores[CHECKPOINTS].load_latest()

    @ray.method(concurrency_group=FILES)
    def size(self, name: str) -> int:
        """Bytes of a file of the dataset, for a worker that does not see it."""
        return self._files.size(name)

    @ray.method(concurrency_group=FILES)
    def read(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file of the dataset."""
        return self._files.read(name, offset, length)

    def send(self, message: Message) -> Reply:
        """Leave a message for the driver; the reply says what the worker is to do."""
        origin = message.origin
        if origin.attempt < self._attempt:
            return "exit"
        with self._lock:
            self._messages.append((message, time.monotonic()))
        self._over = self._over or isinstance(message, Interrupted | Failed | Crashed)
        self._over = self._over or (isinstance(message, Finished) and message.outcome is not None)
        if (origin.attempt, origin.rank) in self._ending:
            return "exit"
        return "stop" if self._stop else "continue"

    def receive(self) -> list[tuple[Message, float]]:
        """All messages since the last call, and when each came by the clock of this machine."""
        with self._lock:
            received, self._messages = self._messages, []
        return received

    def end_worker(self, attempt: int, rank: int) -> None:
        """Let a worker exit at its next sign of life."""
        self._ending.add((attempt, rank))

    def ask_to_stop(self) -> None:
        """Let the workers save themselves and end."""
        self._stop = True

    def is_over(self) -> bool:
        """Whether the run has ended: workers that come now have nothing to do."""
        return self._over


@dataclass
class _RemoteStore:
    """Rank 0's way to the run's directory."""

    actor: Any
    name: str
    attempt: int

    def save(self, checkpoint: Checkpoint) -> None:
        _get(self.actor.save.remote(self.name, checkpoint, self.attempt))

    def load_latest(self) -> Checkpoint | None:
        latest: Checkpoint | None = _get(self.actor.load_latest.remote())
        return latest


def _get(reference: Any) -> Any:
    """The result of a call of the actor; its errors as themselves, without Ray's account of where they came from."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


@dataclass
class _Files:
    """The driver's dataset, for a worker that does not see it."""

    actor: Any

    def size(self, name: str) -> int:
        return int(ray.get(self.actor.size.remote(name)))

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(ray.get(self.actor.read.remote(name, offset, length)))


def work_on_ray(settings: dict[str, Any]) -> None:
    """What Ray Train runs in every worker."""
    ray_context, actor = ray.train.get_context(), settings["actor"]
    rank, size = ray_context.get_world_rank(), ray_context.get_world_size()
    if ray.get(actor.is_over.remote()):
        return
    contact = _Contact(actor)
    try:
        with _meeting(ray_context, actor, contact.activity) as (origin, store):
            contact.origin = replace(origin, rank=rank)
            _work(settings, store, contact.context(), size=size)
    except Stopped:
        ray.get(actor.send.remote(Interrupted(contact.origin_of(rank))))
    except SightlineError as error:
        ray.get(actor.send.remote(Failed(contact.origin_of(rank), error)))
        raise  # Or else the others would wait for this one; started again, they find that the run is over.
    except (WorkerLostError, ray.exceptions.RayError):
        raise  # Ray starts all of them again.
    except Exception:
        ray.get(actor.send.remote(Crashed(contact.origin_of(rank), traceback.format_exc())))
        raise


class _Contact:
    """A worker's contact with the driver's actor, kept by a thread from its start on.

    Attributes:
        origin: Of this worker; None until the workers of the attempt have met.
    """

    def __init__(self, actor: Any) -> None:
        self._actor, self._stop = actor, threading.Event()
        self.origin: Origin | None = None
        self.activity = Activity()
        threading.Thread(target=self._beat, daemon=True, name="sightline-heartbeat").start()

    def origin_of(self, rank: int) -> Origin:
        """This worker's; before it knows its attempt, the newest one."""
        return self.origin or replace(ray.get(self._actor.origin.remote()), rank=rank)

    def context(self) -> WorkerContext:
        """What the training loop is given."""
        assert self.origin is not None
        context = WorkerContext(self.origin, should_stop=self._stop.is_set, activity=self.activity)
        if self.origin.rank == 0:
            context.checkpoints = _RemoteStore(self._actor, CHECKPOINTS, self.origin.attempt)
            context.best = _RemoteStore(self._actor, BEST, self.origin.attempt)
            context.send = self._actor.send.remote
        return context

    def _beat(self) -> None:
        while True:
            try:
                reply = self._report()
            except Exception:  # The actor is gone or cannot be reached, and nobody would see this worker hang.
                traceback.print_exc()
                os._exit(LOST)
            if reply == "stop":
                self._stop.set()
            elif reply == "exit":
                os._exit(LOST)
            time.sleep(BEAT_S)

    def _report(self) -> Reply:
        if self.origin is None:
            ray.get(self._actor.is_over.remote(), timeout=_CONTACT_S)
            return "continue"
        message = Alive(self.origin, self.activity.beat(peak_memory()))
        reply: Reply = ray.get(self._actor.send.remote(message), timeout=_CONTACT_S)
        return reply


def _work(settings: dict[str, Any], store: Store, context: WorkerContext, *, size: int) -> None:
    actor, job, rank = settings["actor"], settings["job"], context.origin.rank
    weights = ray.get(settings["weights"][0]) if rank == 0 else None
    files, parts = _Files(actor), job.parts
    parts = replace(parts, train=within_reach(parts.train, files), validation=within_reach(parts.validation, files))
    job = replace(job, weights=weights, parts=parts)
    device = pick_device(job.config.train.device)
    with joined(settings["backend"], store, rank=rank, size=size, activity=context.activity) as collective:
        outcome = work(job, collective, context, device=device)
        collective.barrier()
    ray.get(actor.send.remote(Finished(context.origin, outcome if rank == 0 else None)))


@contextmanager
def _meeting(ray_context: Any, actor: Any, activity: Activity) -> Iterator[tuple[Origin, Store]]:
    """The number of this attempt, and where its workers join: a file on their node, else a port of rank 0's node."""
    rank, size = ray_context.get_world_rank(), ray_context.get_world_size()
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    one_node = ray_context.get_local_world_size() == size
    bind_to_address("127.0.0.1" if one_node else address)
    with tempfile.TemporaryDirectory(prefix="sightline-") as private:
        origin = _get(actor.begin_attempt.remote()) if rank == 0 else None
        served = serve_store(address, size) if rank == 0 and not one_node else None
        meeting = (origin, address, served.port) if served else (origin, f"{private}/store", 0)
        with activity.waiting():
            origin, where, port = broadcast_from_rank_zero(meeting)
        store = served or (connect_store(where, port, size) if port else file_store(Path(where), size))
        yield origin, store
