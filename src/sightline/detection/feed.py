"""Chunks for one run to work on: those of the plan that nobody has done and nobody else is doing."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from sightline.detection.plan import Chunk, Generation, Planner, read_chunks
from sightline.detection.targets.target import Owner, Target
from sightline.errors import SightlineError, WorkerError

_ASK_AGAIN_S = 1.0
_SIGNS_A_LEASE = 3
_END_S = 5.0


@dataclass(frozen=True)
class Leased:
    """A chunk that this run may work on, and how often somebody began it, with this time."""

    chunk: Chunk
    attempts: int


class Leases:
    """The leases of a run, which a thread keeps alive."""

    def __init__(self, target: Target, owner: Owner, lease_s: float) -> None:
        self._target, self._owner, self._lease_s = target, owner, lease_s
        self._held: set[str] = set()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="sightline-leases")

    def __enter__(self) -> "Leases":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_S)  # A target that does not answer is not waited for.
        if kind is None:
            self._target.release(self._held, self._owner)
        # What no worker could finish counts as an attempt: the next run tries these images apart.
        elif not issubclass(kind, WorkerError):
            with suppress(SightlineError):  # It would hide what has ended the run.
                self._target.release(self._held, self._owner)

    def take(self, chunk: Chunk) -> Leased | None:
        """Lease a chunk, unless it is done or another run's."""
        attempts = self._target.claim([chunk.lease], self._owner, lease_s=self._lease_s).get(chunk.lease)
        if attempts is None:
            return None
        with self._lock:
            self._held.add(chunk.lease)
        return Leased(chunk, attempts)

    def end(self, chunk: Chunk) -> None:
        """A chunk is done, or there is nothing to do in it; committing it has ended its lease."""
        with self._lock:
            self._held.discard(chunk.lease)
        if chunk.again:
            self._target.release([chunk.lease], self._owner)

    def _renew(self) -> None:
        while not self._over.wait(self._lease_s / _SIGNS_A_LEASE):
            with self._lock:
                held = set(self._held)
            if held:
                with suppress(SightlineError):  # A target that is away will be missed at the next commit.
                    self._target.renew(held, self._owner, lease_s=self._lease_s)


class Listing:
    """Extends the plan in a thread, so that work goes on while names are listed.

    Attributes:
        ended: Whether all names are in the plan.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._generations: list[Generation] = []
        self._num_images = 0
        self._error: BaseException | None = None
        self.ended = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="sightline-listing")

    def __enter__(self) -> "Listing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._planner.stop()
        self._thread.join(_END_S)  # A directory or bucket that does not answer is not waited for.

    @property
    def num_images(self) -> int:
        """In the plan so far."""
        return self._num_images

    def get(self, number: int) -> Generation | None:
        """A generation, if it is there yet.

        Raises:
            SightlineError: The source cannot be listed, or the plan not be published.
        """
        if self._error:
            raise self._error
        return self._generations[number] if number < len(self._generations) else None

    def _run(self) -> None:
        try:
            for generation in self._planner.generations():
                self._generations.append(generation)
                self._num_images += generation.num_images
        except BaseException as error:  # In a thread: whoever asks for generations decides.
            self._error = error
        self.ended = True


class Feed:
    """Gives leased chunks one after another.

    Attributes:
        done_before: Images that had their rows when this run came to them.
    """

    def __init__(self, target: Target, planner: Planner, listing: Listing, leases: Leases) -> None:
        self._target, self._planner, self._listing, self._leases = target, planner, listing, leases
        self._committed, self._asked = target.committed(), monotonic()
        self._elsewhere: list[Chunk] = []
        self.done_before = 0

    def chunks(self) -> Iterator[Leased | None]:
        """Until all is done; None where there is nothing to do at the moment."""
        number = 0
        while True:
            ended = self._listing.ended  # Asked first: the last generation may come between the two questions.
            generation = self._listing.get(number)
            if generation:
                yield from self._of(generation)
                number += 1
            elif ended:
                break
            else:
                yield None
        for chunk in self._planner.again():
            yield from self._take(chunk)
        yield from self._after_others()

    def _of(self, generation: Generation) -> Iterator[Leased | None]:
        if generation.chunks().keys() <= self._committed:
            self.done_before += generation.num_images
            return
        for chunk in read_chunks(self._target, generation.number):
            if chunk.name in self._committed:
                self.done_before += len(chunk.items)
            else:
                yield from self._take(chunk)

    def _take(self, chunk: Chunk) -> Iterator[Leased]:
        leased = self._leases.take(chunk)
        if leased is None:
            if self._is_done(chunk):
                self.done_before += len(chunk.items)
            else:
                self._elsewhere.append(chunk)
        elif not chunk.again:
            yield leased
        elif (left := self._planner.left_to_do(chunk)).items:
            yield replace(leased, chunk=left)
        else:
            self._leases.end(chunk)

    def _is_done(self, chunk: Chunk) -> bool:
        """Whether another run has committed it; that is asked now and then, for there may be many chunks."""
        if monotonic() - self._asked > _ASK_AGAIN_S:
            self._committed, self._asked = self._target.committed(), monotonic()
        return not chunk.again and chunk.name in self._committed

    def _after_others(self) -> Iterator[Leased | None]:
        """Wait for what other runs have leased; what they give up is done here."""
        tried = 0.0
        while self._elsewhere:
            if monotonic() - tried < _ASK_AGAIN_S:
                yield None
                continue
            tried, waiting, self._elsewhere = monotonic(), self._elsewhere, []
            for chunk in waiting:
                yield from self._take(chunk)
