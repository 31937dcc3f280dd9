"""Workers as Ray actors, on one machine or many.

Only ids and rows cross processes: actors read, decode and detect by themselves. The model travels once, through Ray's
object store. An actor whose node does not see the driver's images reads them through the driver's machine. An actor
that dies, or gets nowhere, gives its tasks back and is replaced.
"""

import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sightline.cluster.connection import list_nodes
from sightline.cluster.local_node import available_memory
from sightline.cluster.preflight import Demand, check_memory, share_cpus
from sightline.config import DetectConfig
from sightline.detection.item import Item, Source
from sightline.detection.pool import IN_FLIGHT, START_S, Died, Done, StallTimer, Task, WatchClock
from sightline.detection.preflight import REMEDY
from sightline.detection.same_source import Sample, take_samples, why_not_seen
from sightline.detection.worker_spec import WorkerSpec
from sightline.errors import BrokenModelError, SightlineError, SourceError, WorkerError

_WATCH = "watch"
_LOOK_EVERY_S = 5.0
_STARTS = 3
_READERS = 8
_LOSSES = 6
"""Losses of workers with their nodes, or to a shortage of memory, before any worker finishes a task again; those of one
node, which may take all workers with it, count once."""
_NODE_DIED = "its node has died"
"""What Ray says of an actor that was lost with its node; it has no exception class of its own."""


@dataclass(frozen=True)
class Ready:
    """What an actor says when it can begin: what it needs and what its node has.

    Attributes:
        not_seen: Why it reads the source through the driver's node; empty if it reads by itself.
    """

    node: str
    rss: int
    memory: int
    not_seen: str


class Actor:
    """A worker, in a process that Ray started."""

    def __init__(self) -> None:
        self._worker: Any = None

    def start(self, spec: WorkerSpec, server: Any, samples: Sequence[Sample], measured: Sequence[Item]) -> Ready:
        """Make the worker, and let it look at a few images to see how much memory it takes."""
        not_seen = why_not_seen(spec.source, samples)
        if not_seen:
            spec = replace(spec, source=ServedSource(spec.source.name, server))
        self._worker = spec.make_worker()
        self._worker.check_model()
        self._worker.process("sample", tuple(measured))
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # What this worker has taken already is its own share of the node.
        return Ready(ray.get_runtime_context().get_node_id(), rss, available_memory() + rss, not_seen)

    def process(self, chunk: str, items: tuple[Item, ...]) -> pa.Table:
        """Rows for the images of a chunk."""
        rows: pa.Table = self._worker.process(chunk, items)
        return rows

    @ray.method(concurrency_group=_WATCH)
    def done(self) -> int:
        """Images so far."""
        return self._worker.done if self._worker else 0


class SourceServer:
    """Reads images on the driver's node, for actors on nodes that do not see them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, item: Item) -> bytes:
        """The bytes of an image."""
        return self._source.read(item)


@dataclass(frozen=True)
class ServedSource:
    """A source that is read through the driver's node."""

    name: str
    server: Any

    def items(self) -> Iterator[Item]:
        """Only the driver lists."""
        raise NotImplementedError

    def read(self, item: Item) -> bytes:
        """The bytes of an image."""
        try:
            return bytes(ray.get(self.server.read.remote(item)))
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, SightlineError) else error) from None
        except RayError as error:
            raise SourceError(f"the driver's node, which reads {self.name}, does not answer: {error}") from error

    def is_visible(self) -> bool:
        """Always."""
        return True


@dataclass
class _Seat:
    """A place for an actor, and the one that has it."""

    actor: Any
    starting: Any
    ready: bool = False
    tasks: dict[Any, Task] = field(default_factory=dict)
    done: int = 0
    moved: float = 0.0
    asked: Any = None


class RayPool:
    """Actors on the cluster that this process is connected to.

    Args:
        sample: A few images, to measure with, and to compare what workers read with what the driver reads.

    Raises:
        SourceError: They cannot be read.
    """

    def __init__(
        self, spec: WorkerSpec, config: DetectConfig, sample: Sequence[Item], *, on_note: Callable[[str], None]
    ) -> None:
        self._config, self._measured, self._on_note = config, list(sample), on_note
        self._samples = take_samples(spec.source, sample)
        self.size = config.workers
        self._gpus = gpus_per_worker(config)
        self._cpus = share_cpus(
            list_nodes(),
            Demand(config.workers),
            threads=config.threads,
            gpus=self._gpus,
            oversubscribe=config.oversubscribe,
        )
        threads = config.threads or max(1, int(self._cpus))
        spec = replace(spec, settings=replace(spec.settings, threads=threads))
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote: Any = ray.remote
        self._server = (
            remote(num_cpus=0, max_concurrency=_READERS, max_restarts=-1)(SourceServer)
            .options(scheduling_strategy=here)
            .remote(spec.source)
        )
        self._spec = ray.put(spec)
        self._class = remote(max_restarts=0, max_concurrency=IN_FLIGHT, concurrency_groups={_WATCH: 1})(Actor)
        self._clock = WatchClock()
        self._seats: list[_Seat] = [self._seat()]
        self._failures = self._admitted = self._losses = 0
        self._absence = StallTimer()
        self._lost: list[Died] = []
        self._looked = monotonic()

    @property
    def alive(self) -> int:
        """See `Pool.alive`."""
        return sum(seat.ready for seat in self._seats)

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return self._free_seat(alone) is not None

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        seat = self._free_seat(task.alone)
        assert seat is not None, "ask `takes` first"
        seat.moved = self._clock.now if not seat.tasks else seat.moved
        seat.tasks[seat.actor.process.remote(task.chunk.name, task.items)] = task

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        began = monotonic()
        waited = {ref: seat for seat in self._seats for ref in (*seat.tasks, *([] if seat.ready else [seat.starting]))}
        outcomes: list[Done | Died] = []
        if waited:
            ready, _ = ray.wait(list(waited), num_returns=1, timeout=timeout_s)
            for ref in ready:
                outcomes += self._hear(ref, waited[ref])
        else:
            threading.Event().wait(timeout_s)
        outcomes += self._lost
        self._lost = []
        self._clock.look()
        self._look_for_stalls()
        if not self.alive:
            self._check_absence(min(monotonic() - began, timeout_s))
        return outcomes

    def close(self) -> None:
        """See `Pool.close`."""
        for seat in self._seats:
            ray.kill(seat.actor)
        ray.kill(self._server)

    def _free_seat(self, alone: bool) -> _Seat | None:
        def fits(seat: _Seat) -> bool:
            exclusive = any(task.alone for task in seat.tasks.values())
            return seat.ready and not exclusive and len(seat.tasks) < (1 if alone else IN_FLIGHT)

        return min(filter(fits, self._seats), key=lambda seat: len(seat.tasks), default=None)

    def _seat(self) -> _Seat:
        options: dict[str, Any] = {"num_cpus": self._cpus, "scheduling_strategy": "SPREAD"}
        if self._gpus:
            options["num_gpus"] = self._gpus
        actor = self._class.options(**options).remote()
        return _Seat(actor, actor.start.remote(self._spec, self._server, self._samples, self._measured))

    def _hear(self, ref: Any, seat: _Seat) -> list[Done | Died]:
        if seat not in self._seats:
            return []  # It died of another task, and this one was given back with it.
        try:
            found = ray.get(ref)
        except RayTaskError as error:
            if isinstance(error.cause, BrokenModelError):  # It worked when the actor started: an image broke it.
                ray.kill(seat.actor)
                return list(self._replace(seat, str(error.cause)))
            if isinstance(error.cause, SightlineError):
                raise error.cause from None
            if ref == seat.starting:
                raise WorkerError(f"a worker cannot start: {type(error.cause).__name__}: {error.cause}") from error
            raise
        except RayError as error:
            return list(self._replace(seat, _first_line(error), blames_node=blames_node(error)))
        if ref == seat.starting:
            self._admit(seat, found)
            return []
        seat.moved, self._losses = self._clock.now, 0
        return [Done(seat.tasks.pop(ref), found)]

    def _admit(self, seat: _Seat, ready: Ready) -> None:
        """A worker can begin; the first one tells whether there is memory for all of them."""
        seat.ready, seat.moved, self._failures = True, self._clock.now, 0
        self._admitted += 1
        if ready.not_seen:
            self._on_note(f"a worker does not see the source ({ready.not_seen}): it reads through this machine")
        if len(self._seats) == 1 and self.size > 1:
            self._check_memory(ready)
        while len(self._seats) < self.size:
            self._seats.append(self._seat())

    def _check_memory(self, ready: Ready) -> None:
        """Refuse the other workers if they do not fit, by what the first one was seen to take."""
        nodes = [replace(node, memory=ready.memory) for node in list_nodes()]
        demand = Demand(self.size, ready.rss, remedy=REMEDY)
        for warning in check_memory(demand, nodes, oversubscribe=self._config.oversubscribe):
            self._on_note(warning)

    def _replace(self, seat: _Seat, why: str, *, blames_node: bool = False) -> Iterator[Died]:
        """Another actor takes the seat of one that died; its tasks go back.

        Raises:
            WorkerError: Workers die again and again before they can begin, or with their nodes.
        """
        self._seats.remove(seat)
        if not seat.ready:
            self._measured = []  # It may have died of that; in a chunk it would be found out which image it was.
        if blames_node:
            self._count_loss(why)
        elif not seat.ready:
            self._failures += 1
        if self._failures >= _STARTS:
            raise WorkerError(f"workers died {_STARTS} times in a row before they could begin: {why}")
        self._seats.append(self._seat())
        for task in seat.tasks.values():
            yield Died(task, why, blames_node)

    def _count_loss(self, why: str) -> None:
        self._losses += 1
        if self._losses >= _LOSSES + self.size - 1:
            raise WorkerError(
                f"workers were lost {self._losses} times with their nodes or to a shortage of memory there, and none "
                f"has finished any images since the first: {why}. When the nodes are up, run the same command with "
                "fewer workers or a smaller detect.batch; a lower decode.max_pixels rejects images that are larger"
            )

    def _check_absence(self, waited_s: float) -> None:
        """Ray waits for room for ever.

        Raises:
            WorkerError: No worker has been ready for too long.
        """
        limit_s = max(self._config.stall_s, START_S)
        if self._absence.wait(self._admitted, waited_s) <= limit_s:
            return
        nodes = list_nodes()
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        cpus, gpus = sum(node.cores for node in nodes), sum(node.gpus for node in nodes)
        raise WorkerError(
            f"no worker was ready in {limit_s:g} s: each needs {self._cpus:g} CPUs and {self._gpus:g} "
            f"GPUs; the cluster has {cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} nodes, of which "
            f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free. When there is room again, run the "
            "same command; --set detect.stall_s=SECONDS waits longer"
        )

    def _look_for_stalls(self) -> None:
        """End actors that have work and finish no image; one that is stopped does not even answer."""
        if monotonic() - self._looked < _LOOK_EVERY_S:
            return
        self._looked = monotonic()
        for seat in list(self._seats):
            if not seat.tasks:
                continue
            if seat.asked is not None and ray.wait([seat.asked], timeout=0)[0]:
                self._note_done(seat)
            if seat.asked is None:
                seat.asked = seat.actor.done.remote()
            if self._clock.now - seat.moved > self._config.stall_s:
                ray.kill(seat.actor)
                self._lost += self._replace(seat, f"no image was finished in {self._config.stall_s:g} s")

    def _note_done(self, seat: _Seat) -> None:
        try:
            done = ray.get(seat.asked)
        except RayError:
            return  # Its tasks will say so.
        finally:
            seat.asked = None
        if done != seat.done:
            seat.done, seat.moved = done, self._clock.now


def gpus_per_worker(config: DetectConfig) -> float:
    """Those asked for; else one for each worker, where the cluster has enough."""
    if config.gpus_per_worker is not None:
        return config.gpus_per_worker
    return float(sum(node.gpus for node in list_nodes()) >= config.workers)


def blames_node(error: RayError) -> bool:
    """Whether Ray says that a worker was lost with its node, or ended because memory was short there.

    When only the process died, its node reports that. An actor is "unavailable" when no node answers for it: its node
    is gone, and Ray takes a while to notice.
    """
    if isinstance(error, NodeDiedError | OutOfMemoryError | ActorUnavailableError):
        return True
    return isinstance(error, RayActorError) and (error.preempted or _NODE_DIED in str(error))


def _first_line(error: RayError) -> str:
    kind = "its actor or node was lost" if isinstance(error, RayActorError) else type(error).__name__
    return f"{kind}: {next(iter(str(error).strip().splitlines()), '')[:200]}"
