"""A run of a job: hands chunks out to workers and commits what they bring. Nobody else writes to the target.

A worker may die over an image. Then its chunk is tried again in parts, the part that somebody dies over once more image
by image, and the image that a third worker dies over is rejected; all others have their rows. A worker that is lost
with its node, or because memory is short there, has not died over an image: its chunk is tried again as it is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import isqrt
from time import monotonic

import pyarrow as pa
import pyarrow.compute as pc

from sightline.detection.feed import Feed, Leased, Leases, Listing
from sightline.detection.plan import Chunk, Planner
from sightline.detection.pool import Died, Done, Pool, Task
from sightline.detection.rows import ModelName, rejected_rows
from sightline.detection.schema import REJECTED, UNREAD
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.target import Owner, Target
from sightline.errors import ImageError, Stopped

ATTEMPTS = 3
"""Workers that may die over an image before it is rejected."""
LOST = 2
"""So often a worker may be lost with its node, or to a shortage of memory there, before that counts as an attempt: one
image may be all that it takes to exhaust the memory, and is found out like any other that ends its worker."""

_WAIT_S = 0.2
_SEEN = ("image_id", "version", "status", "stage", "reason")


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: Images that have their rows, whoever looked at them.
        new: Those of them that this run looked at.
        total: Images of the plan; more may come until `listed`.
        rejected: Of this run.
    """

    done: int
    new: int
    total: int
    listed: bool
    rejected: int
    workers: int
    workers_wanted: int


@dataclass(frozen=True)
class Watcher:
    """Who is told how a run goes, and may stop it."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_note: Callable[[str], None] = lambda note: None
    on_commit: Callable[[Chunk, pa.Table], None] = lambda chunk, rows: None
    should_stop: Callable[[], bool] = lambda: False


@dataclass
class Counts:
    """What a run did: rows of other runs do not count. Seconds are from its start."""

    images: int = 0
    rejected: int = 0
    chunks: int = 0
    first_commit_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What tells a committed row from a later one of the same image."""

    version: str
    status: str
    stage: str | None
    reason: str | None

    @property
    def is_unread(self) -> bool:
        return self.status == REJECTED and self.stage == UNREAD

    def replaces(self, other: "_Seen") -> bool:
        """Whether it says something new; that an image cannot be read now is nothing against what was found in it."""
        return self != other and (other.is_unread or not self.is_unread)


def _read_seen(target: Target, chunk: str) -> tuple[int, dict[str, _Seen]]:
    """The revision of a chunk, and what was seen of its images."""
    revision, rows = target.read_chunk(chunk, _SEEN)
    return revision, _seen(rows)


def _seen(rows: pa.Table) -> dict[str, _Seen]:
    ids, *others = (rows.column(name).to_pylist() for name in _SEEN)
    return {image_id: _Seen(*seen) for image_id, *seen in zip(ids, *others, strict=True)}


@dataclass
class _Open:
    """A chunk that is under way, in one part or several.

    Attributes:
        before: What its rows were when it was begun, if it is looked at again.
    """

    chunk: Chunk
    before: dict[str, _Seen]
    parts: int = 1
    tables: list[pa.Table] = field(default_factory=list)

    def rows(self) -> pa.Table:
        """All of its rows, in the order of its images."""
        table = pa.concat_tables(self.tables)
        place = {item.image_id: place for place, item in enumerate(self.chunk.items)}
        places = pa.array([place[image_id] for image_id in table.column("image_id").to_pylist()])
        return table.take(pc.sort_indices(places))


class Runner:
    """Brings a job to its end.

    Args:
        counts: What has been done so far, which goes on here.
        owner: Whose leases and rows these are; default: a run of its own.
        apart: Makes workers for chunks that a run died over before, where a worker can take the run with it.
    """

    def __init__(
        self,
        target: Target,
        planner: Planner,
        pool: Pool,
        model: ModelName,
        counts: Counts,
        *,
        lease_s: float,
        watcher: Watcher,
        apart: Callable[[], Pool] | None = None,
        owner: Owner | None = None,
    ) -> None:
        self._target, self._planner, self._pool, self._model = target, planner, pool, model
        self._lease_s, self._watcher = lease_s, watcher
        self._make_apart, self._apart = apart, None if apart else pool
        self._open: dict[str, _Open] = {}
        self._parts: deque[Task] = deque()
        self._began, self._owner = monotonic(), owner or this_run()
        self.counts = counts

    def run(self) -> None:
        """Until every image of the source has its row, which is then checked against the plan.

        Raises:
            Stopped: Somebody asked for it.
            DamagedError: Rows and plan do not agree.
        """
        try:
            with Listing(self._planner) as listing, Leases(self._target, self._owner, self._lease_s) as leases:
                feed = Feed(self._target, self._planner, listing, leases)
                chunks = feed.chunks()
                ended = False
                while self._open or not ended:
                    if self._watcher.should_stop():
                        raise Stopped
                    ended = ended or self._hand_out(chunks)
                    for outcome in self._outcomes():
                        self._heed(outcome, feed, leases)
                    self._tell(feed, listing)
            self._planner.reconcile()
        finally:
            if self._make_apart and self._apart:
                self._apart.close()

    def _hand_out(self, chunks: Iterator[Leased | None]) -> bool:
        """Keep the workers busy; true once no chunk is left to begin."""
        self._hand_out_parts()
        while not self._parts and self._pool.takes():
            try:
                leased = next(chunks)
            except StopIteration:
                return True
            if leased is None:
                return False
            self._begin(leased)
        return False

    def _hand_out_parts(self) -> None:
        while self._parts and self._workers_apart().takes(alone=True):
            self._workers_apart().submit(self._parts.popleft())

    def _begin(self, leased: Leased) -> None:
        chunk = leased.chunk
        self._open[chunk.lease] = _Open(chunk, _read_seen(self._target, chunk.name)[1] if chunk.again else {})
        task = Task(chunk, chunk.items)
        if leased.attempts > 1 and self._make_apart:
            self._watcher.on_note(f"chunk {chunk.name} was begun before and not ended: its images are tried apart")
            self._split(task)
        else:
            self._pool.submit(task)

    def _workers_apart(self) -> Pool:
        if self._apart is None:
            assert self._make_apart is not None
            self._apart = self._make_apart()
        return self._apart

    def _pools(self) -> list[Pool]:
        return [self._pool] if self._apart is None or self._apart is self._pool else [self._pool, self._apart]

    def _outcomes(self) -> list[Done | Died]:
        self._hand_out_parts()
        return [outcome for pool in self._pools() for outcome in pool.wait(_WAIT_S / len(self._pools()))]

    def _heed(self, outcome: Done | Died, feed: Feed, leases: Leases) -> None:
        task = outcome.task
        if isinstance(outcome, Died):
            where = f"{len(task.items)} images of chunk {task.chunk.name}"
            self._watcher.on_note(f"a worker died with {where}: {outcome.why}")
            if outcome.blames_node and task.lost < LOST:  # That was no attempt of these images.
                self._parts.append(replace(task, lost=task.lost + 1))
                return
            if task.attempt < ATTEMPTS:
                self._split(task)
                return
            error = ImageError("killed the worker", outcome.why, stage="detect")
            rows = rejected_rows(task.items, task.chunk.name, self._model, error)
        else:
            rows = outcome.rows
        opened = self._open[task.chunk.lease]
        opened.tables.append(rows)
        opened.parts -= 1
        if not opened.parts:
            self._commit(opened, feed, leases)

    def _split(self, task: Task) -> None:
        """Try the images of a task again in fewer at a time, so that the third attempt is at single ones."""
        attempt = task.attempt + 1
        size = 1 if attempt >= ATTEMPTS else isqrt(max(len(task.items) - 1, 0)) + 1
        parts = [task.items[start : start + size] for start in range(0, len(task.items), size)]
        self._open[task.chunk.lease].parts += len(parts) - 1
        self._parts.extend(Task(task.chunk, part, attempt, task.lost) for part in parts)

    def _commit(self, opened: _Open, feed: Feed, leases: Leases) -> None:
        chunk, rows = opened.chunk, opened.rows()
        if chunk.again:
            own = self._replace(chunk.name, rows, opened.before)
        elif self._target.commit(chunk.name, rows, self._owner):
            own = rows
        else:  # Another run was first, and its rows are as good, except for images that it could not read.
            own = self._replace(chunk.name, rows, None)
        leases.end(chunk)
        del self._open[chunk.lease]
        feed.done_before += rows.num_rows - own.num_rows
        if not own.num_rows:
            return
        counts = self.counts
        counts.first_commit_s = counts.first_commit_s or monotonic() - self._began
        counts.images, counts.chunks = counts.images + own.num_rows, counts.chunks + 1
        counts.rejected += pc.sum(pc.equal(own.column("status"), REJECTED)).as_py()
        self._watcher.on_commit(chunk, own)

    def _replace(self, chunk: str, rows: pa.Table, before: dict[str, _Seen] | None) -> pa.Table:
        """Put rows in place of committed ones; gives those that were still to be replaced.

        Args:
            before: What the committed rows were when this run began with them: any that are something else by now are
                another run's, which came later. None replaces those of images that could not be read.
        """
        while True:
            revision, found = _read_seen(self._target, chunk)
            if before is None:
                wanted = [key for key, seen in found.items() if seen.is_unread]
                rows = rows.filter(pc.not_equal(pc.fill_null(rows.column("stage"), ""), UNREAD))
            else:
                wanted = [key for key, seen in found.items() if seen == before.get(key)]
            own = rows.filter(pc.is_in(rows.column("image_id"), pa.array(wanted, pa.string())))
            news = own.filter(pa.array([seen.replaces(found[key]) for key, seen in _seen(own).items()], pa.bool_()))
            if not news.num_rows or self._target.rewrite(chunk, news, self._owner, revision=revision):
                return own

    def _tell(self, feed: Feed, listing: Listing) -> None:
        new, alive = self.counts.images, self._pool.alive
        done = min(feed.done_before + new, listing.num_images)
        self._watcher.on_progress(
            Progress(done, new, listing.num_images, listing.ended, self.counts.rejected, alive, self._pool.size)
        )
