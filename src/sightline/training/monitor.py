"""The driver's view of a run, from the messages of its workers alone.

It starts nothing, waits for nothing, reads no clock and writes no file, so that every order of messages can be tested.
Launchers pass it what they receive and do what it asks for; whoever records or shows the run subscribes to the messages
that took effect.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sightline.errors import SightlineError, Stopped, TrainingError
from sightline.training.messages import (
    DRIVER,
    LAST_WORDS,
    PARTS,
    Alive,
    CheckpointSaved,
    Crashed,
    Exited,
    Failed,
    Finished,
    Interrupted,
    Message,
    Note,
    Origin,
    Outcome,
    PeerLost,
    Resumed,
    RunProgress,
    StepCompleted,
    WorkersAlive,
)

RESTARTS = 5
"""How often in a row workers are restarted without a new checkpoint before the run fails."""
START_S = 600.0
"""How long a worker may take from its start to its first message: imports, on a machine that is busy."""
END_S = 10.0
"""How long workers may take to exit after the run is over, before they are killed."""
ALIVE_S = 10.0
"""A worker that has sent nothing for this long does not count as alive; heartbeats come every second."""
SETTLE_S = 2.0
"""How long after a worker lost its peers the driver waits to see which process has died."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    """What a launcher is asked to do: end a worker that hangs, or that does not exit."""

    rank: int


@dataclass
class _Worker:
    started: float
    heard: float | None = None
    last_word: type[Message] | None = None
    killed: bool = False


class RunMonitor:
    """Keeps the state of one run.

    Args:
        run: Its name.
        progress: Where it stands at the start.
        num_workers: Workers of an attempt to supervise; 0 where they run in this process, or are another launcher's.
        heartbeat_timeout_s: See `workers.hang_after_s`.

    Attributes:
        progress: Where the run stands, as far as is known.
        seconds: Where the time went, over all attempts.
        saves: Checkpoints saved: whether the run makes progress.
        lost: Which worker of this attempt was lost, and how; empty as long as none is.
        outcome: The result, once the run has come to its end.
    """

    def __init__(
        self,
        run: str,
        progress: RunProgress,
        *,
        num_workers: int = 0,
        heartbeat_timeout_s: float = 30.0,
        subscribers: Sequence[Callable[[Message], None]] = (),
    ) -> None:
        self._run, self._num_workers, self._timeout_s = run, num_workers, heartbeat_timeout_s
        self._subscribers = list(subscribers)
        self.progress, self.resumed_at_step = progress, progress.step
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._before = dict(self.seconds)
        self._memory: dict[int, dict[str, float]] = {}
        self.saves = self._saves_before = 0
        self._failures = 0
        self.attempt = 0
        self._workers: dict[int, _Worker] = {}
        self._alive: tuple[int, int] | None = None
        self.outcome: Outcome | None = None
        self.lost = ""
        self._error: SightlineError | None = None
        self._stopped = self._resumed = False
        self._over_since: float | None = None
        self._peer_lost: tuple[float, str] | None = None

    def subscribe(self, subscriber: Callable[[Message], None]) -> None:
        """Pass every message that takes effect to a subscriber from now on."""
        self._subscribers.append(subscriber)

    @property
    def memory(self) -> dict[str, float]:
        """The most that any worker has held, by kind of memory; empty if none has said."""
        kinds = {kind for held in self._memory.values() for kind in held}
        return {kind: max(held.get(kind, 0.0) for held in self._memory.values()) for kind in kinds}

    @property
    def is_over(self) -> bool:
        """Whether this attempt has ended: nothing more of it counts."""
        if self.lost or self._error:
            return True
        return bool(self._workers) and all(worker.last_word is Exited for worker in self._workers.values())

    def begin_attempt(self, attempt: int, now: float) -> None:
        """New workers are started; messages of earlier ones have no effect from now on."""
        self.attempt = attempt
        self._workers = {rank: _Worker(now) for rank in range(self._num_workers)}
        self.lost, self._over_since, self._peer_lost, self._resumed = "", None, None, False

    def handle(self, message: Message, now: float) -> bool:
        """Take a message into account; false if it is of an older attempt, or of another run."""
        origin = message.origin
        if origin.run != self._run or origin.attempt < self.attempt:
            return False
        if origin.attempt > self.attempt:  # Started by somebody else, such as Ray.
            if self._resumed:
                self._announce_loss("a worker was lost")
            self.begin_attempt(origin.attempt, now)
        worker = self._workers.get(origin.rank)
        if worker is not None:
            self._hear(worker, message, now)
        self._apply(message)
        self._emit(message)
        self._count_alive(now)
        return True

    def supervise(self, now: float, *, silence: bool = True) -> list[KillWorker]:
        """What is to be done about workers that are silent, hang, or do not exit.

        Args:
            silence: Whether silent workers are the monitor's to end; not where the launcher itself finds them.
        """
        self._count_alive(now)
        for rank, worker in self._workers.items():
            if worker.last_word is not None or worker.killed or not silence:
                continue
            if worker.heard is None and now - worker.started > START_S:
                self._give_up(rank, f"did not start within {START_S:.0f} s", now)
            elif worker.heard is not None and now - worker.heard > self._timeout_s:
                self._give_up(rank, f"gave no sign of life for {now - worker.heard:.0f} s", now)
        if self._peer_lost and now - self._peer_lost[0] > SETTLE_S:
            self.lost = self.lost or f"workers lost each other ({self._peer_lost[1][:300]})"
        ranks = [rank for rank, worker in self._workers.items() if worker.killed]
        if self._over_since is not None and now - self._over_since > END_S:
            ranks = list(self._workers)
            if now - self._over_since > 2 * END_S:  # They cannot even be killed: they wait for a disk.
                for worker in self._workers.values():
                    worker.last_word = Exited
        return [KillWorker(rank) for rank in ranks if self._workers[rank].last_word is not Exited]

    def end_attempt(self) -> Outcome | None:
        """The result of an attempt whose workers have ended; None if a worker was lost and another attempt is due.

        Raises:
            Stopped: The run was asked to stop, and has saved itself.
            SightlineError: A worker failed in a way that another attempt would fail too.
            TrainingError: Workers die again and again without a new checkpoint in between.
        """
        if self._error:
            raise self._error
        if self._stopped:
            raise Stopped
        if self.outcome is not None:
            return self.outcome
        self._announce_loss(self.lost or "all workers ended")
        return None

    def check_restarts(self, what: str) -> None:
        """Count an attempt that was lost.

        Raises:
            TrainingError: There were too many without a new checkpoint.
        """
        self._failures = self._failures + 1 if self.saves == self._saves_before else 1
        self._saves_before = self.saves
        if self._failures > RESTARTS:
            raise TrainingError(f"workers died {self._failures} times without a new checkpoint in between, {what}")

    def note(self, text: str) -> None:
        """Something that users should know."""
        self._emit(Note(self._own_origin, text))

    def _hear(self, worker: _Worker, message: Message, now: float) -> None:
        worker.heard = now
        rank = message.origin.rank
        match message:
            case Alive(heartbeat=heartbeat):
                self._memory[rank] = heartbeat.memory
                if heartbeat.hangs(self._timeout_s) and not worker.killed:
                    self._give_up(rank, f"has not moved on for {heartbeat.idle_s:.0f} s ({heartbeat.phase})", now)
            case PeerLost(reason=reason):
                self._peer_lost = self._peer_lost or (now, reason)
            case Finished(outcome=outcome) if outcome is not None:
                self._over_since = self._over_since or now
            case Interrupted():
                self._over_since = self._over_since or now
            case Exited(how=how) if worker.last_word is None and self._over_since is None:
                self.lost = self.lost or f"worker {rank} was lost{'' if worker.killed else how}"
        if isinstance(message, LAST_WORDS):
            worker.last_word = type(message)

    def _apply(self, message: Message) -> None:
        match message:
            case Resumed(progress=progress, seconds=seconds):
                self._resumed = True
                self.progress, self._before = progress, dict(self.seconds)
                self._add_seconds(seconds)
            case StepCompleted(progress=progress, seconds=seconds):
                self.progress = progress
                self._add_seconds(seconds)
            case CheckpointSaved():
                self.saves += 1
            case Finished(outcome=outcome) if outcome is not None:
                self.outcome, self.progress = outcome, outcome.progress
                self._add_seconds(outcome.seconds)
            case Interrupted():
                self._stopped = True
            case Failed(error=error):
                self._error = self._error or error
            case Crashed(origin=origin, trace=trace):
                self._error = self._error or TrainingError(f"worker {origin.rank} failed:\n{trace}")

    def _give_up(self, rank: int, what: str, now: float) -> None:
        self.note(f"worker {rank} {what}: ended")
        worker = self._workers[rank]
        worker.heard, worker.killed = now, True
        # Not only when its end is seen: a process that waits for a disk in the kernel may outlive its signal.
        self.lost = self.lost or f"worker {rank} was lost"

    def _announce_loss(self, what: str) -> None:
        self.note(f"{what} at step {self.progress.step:,}; going on from the last checkpoint")

    def _count_alive(self, now: float) -> None:
        if not self._workers:
            return
        alive = sum(
            worker.last_word is None and worker.heard is not None and now - worker.heard <= ALIVE_S
            for worker in self._workers.values()
        )
        if self._alive != (alive, self._num_workers):
            self._alive = alive, self._num_workers
            self._emit(WorkersAlive(self._own_origin, alive, self._num_workers))

    @property
    def _own_origin(self) -> Origin:
        return Origin(self._run, self.attempt, DRIVER)

    def _add_seconds(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self.seconds[name] = self._before[name] + value

    def _emit(self, message: Message) -> None:
        for subscriber in self._subscribers:
            subscriber(message)
