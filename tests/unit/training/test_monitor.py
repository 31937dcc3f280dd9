"""The driver's view of a run, from messages alone: no process is started here."""

import pytest

from sightline.errors import ConfigError, Stopped, TrainingError
from sightline.training.heartbeat import Heartbeat
from sightline.training.messages import (
    DRIVER,
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
from sightline.training.monitor import ALIVE_S, END_S, RESTARTS, SETTLE_S, START_S, KillWorker, RunMonitor

TIMEOUT_S = 30.0
OUTCOME = Outcome(RunProgress(step=9), {"data": 2.0}, 0)


def make_monitor(workers: int = 2) -> tuple[RunMonitor, list[Message]]:
    """A monitor of a run whose first attempt has begun, and the messages that took effect."""
    accepted: list[Message] = []
    monitor = RunMonitor(
        "run",
        RunProgress(step=3),
        num_workers=workers,
        heartbeat_timeout_s=TIMEOUT_S,
        subscribers=[accepted.append],
    )
    monitor.begin_attempt(1, now=0.0)
    return monitor, accepted


def origin(rank: int = 0, attempt: int = 1) -> Origin:
    return Origin("run", attempt, rank)


def alive(rank: int, *, attempt: int = 1, idle_s: float = 0.0, memory: float = 1.0) -> Alive:
    beat = Heartbeat(4, "step", idle_s, False, 0.1, {"peak_memory_mb": memory})
    return Alive(origin(rank, attempt), beat)


def step(number: int, *, attempt: int = 1, data_s: float = 0.0) -> StepCompleted:
    return StepCompleted(origin(attempt=attempt), RunProgress(step=number), 10, {"loss": 1.0}, 4, {"data": data_s})


def notes(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, Note)]


@pytest.mark.parametrize(
    "message",
    [
        step(8, attempt=0),
        CheckpointSaved(Origin("run", 0)),
        Finished(Origin("run", 0), OUTCOME),
        Failed(Origin("run", 0), ConfigError("stale")),
        Exited(Origin("run", 0, 1), " to SIGKILL"),
        step(8).__class__(Origin("another run", 1), RunProgress(step=8), 10, {}, 4, {}),
    ],
)
def test_an_older_attempt_and_another_run_have_no_effect(message: Message) -> None:
    monitor, accepted = make_monitor()
    assert not monitor.handle(message, now=1.0)
    assert (monitor.progress.step, monitor.saves, monitor.outcome, monitor.lost) == (3, 0, None, "")
    assert accepted == []


def test_a_run_that_comes_to_its_end() -> None:
    monitor, accepted = make_monitor()
    sent = [
        Resumed(origin(), RunProgress(step=3), {"data": 0.5}),
        step(4, data_s=1.0),
        CheckpointSaved(origin()),
        Finished(origin(), OUTCOME),
        Finished(origin(1)),
    ]
    for message in sent:
        assert monitor.handle(message, now=1.0)
    assert [message for message in accepted if message.origin.rank != DRIVER] == sent, "each is passed on once"
    assert not monitor.is_over
    for rank in (0, 1):
        monitor.handle(Exited(origin(rank)), now=2.0)
    assert monitor.is_over
    assert monitor.end_attempt() == OUTCOME
    assert (monitor.progress.step, monitor.seconds["data"], monitor.saves) == (9, 2.0, 1)


def test_a_worker_whose_process_ends_is_lost() -> None:
    monitor, accepted = make_monitor()
    monitor.handle(step(7), now=1.0)
    monitor.handle(Exited(origin(1), " to SIGKILL (out of memory?)"), now=1.0)
    assert monitor.is_over
    assert monitor.end_attempt() is None
    (said,) = notes(accepted)
    assert said == "worker 1 was lost to SIGKILL (out of memory?) at step 7; going on from the last checkpoint"
    monitor.begin_attempt(2, now=2.0)
    assert not monitor.is_over


def test_one_that_ends_after_the_run_is_not_lost() -> None:
    monitor, _ = make_monitor()
    monitor.handle(Finished(origin(), OUTCOME), now=1.0)
    monitor.handle(Exited(origin(1), " to SIGKILL"), now=1.0)
    assert monitor.lost == ""


@pytest.mark.parametrize(
    ("messages", "now", "said"),
    [
        ([], START_S + 1, "worker 0 did not start within 600 s: ended"),
        ([alive(0)], START_S + 1, "worker 0 gave no sign of life for 601 s: ended"),
        ([alive(0), alive(0, idle_s=31.0)], 1.0, "worker 0 has not moved on for 31 s (step): ended"),
    ],
)
def test_a_worker_that_hangs_is_killed(messages: list[Message], now: float, said: str) -> None:
    monitor, accepted = make_monitor()
    for message in messages:
        monitor.handle(message, now=0.0)
    assert KillWorker(0) in monitor.supervise(now)
    assert said in notes(accepted)
    assert monitor.lost == "worker 0 was lost"
    monitor.handle(Exited(origin(0), " to SIGKILL (out of memory?)"), now)
    assert monitor.lost == "worker 0 was lost", "it was killed by the driver, and not for its memory"
    assert KillWorker(0) not in monitor.supervise(now)


def test_workers_that_lost_each_other_are_given_a_moment_to_show_which_has_died() -> None:
    monitor, _ = make_monitor()
    monitor.handle(PeerLost(origin(), "connection closed by peer"), now=5.0)
    monitor.supervise(5.0 + SETTLE_S / 2)
    assert monitor.lost == ""
    monitor.supervise(5.1 + SETTLE_S)
    assert monitor.lost == "workers lost each other (connection closed by peer)"


def test_workers_that_do_not_exit_are_killed_and_then_no_longer_waited_for() -> None:
    monitor, _ = make_monitor()
    monitor.handle(Finished(origin(), OUTCOME), now=1.0)
    assert monitor.supervise(1.0 + END_S / 2) == []
    assert monitor.supervise(1.1 + END_S) == [KillWorker(0), KillWorker(1)]
    assert not monitor.is_over
    assert monitor.supervise(1.1 + 2 * END_S) == []
    assert monitor.is_over


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        (Failed(origin(1), ConfigError("a wrong setting")), ConfigError, "a wrong setting"),
        (Crashed(origin(1), "Traceback: boom"), TrainingError, "worker 1 failed:\nTraceback: boom"),
        (Interrupted(origin()), Stopped, "^$"),
    ],
)
def test_how_a_run_can_end(message: Message, error: type[Exception], match: str) -> None:
    monitor, _ = make_monitor()
    monitor.handle(message, now=1.0)
    with pytest.raises(error, match=match):
        monitor.end_attempt()


def test_workers_that_die_again_and_again_end_the_run_unless_it_makes_progress() -> None:
    monitor, _ = make_monitor()
    for attempt in range(2, 2 + 2 * RESTARTS):
        monitor.handle(CheckpointSaved(origin(attempt=attempt)), now=1.0)
        monitor.check_restarts("the last time worker 1 was lost")
    for _ in range(RESTARTS - 1):
        monitor.check_restarts("the last time worker 1 was lost")
    with pytest.raises(TrainingError, match="workers died 6 times without a new checkpoint in between, the last time"):
        monitor.check_restarts("the last time worker 1 was lost")


def test_an_attempt_that_somebody_else_started() -> None:
    """Ray restarts workers by itself; the first message of theirs tells."""
    monitor, accepted = make_monitor()
    monitor.handle(Resumed(origin(), RunProgress(step=3), {"data": 1.0}), now=1.0)
    monitor.handle(step(5, data_s=2.0), now=1.0)
    monitor.handle(Resumed(origin(attempt=2), RunProgress(step=4), {"data": 0.5}), now=9.0)
    assert monitor.attempt == 2
    assert notes(accepted) == ["a worker was lost at step 5; going on from the last checkpoint"]
    assert not monitor.handle(step(6), now=9.0), "it comes from behind a partition that has healed"
    assert monitor.progress.step == 4
    assert monitor.seconds["data"] == 2.5, "the time of the first attempt was spent all the same"


def test_how_many_workers_are_alive_is_said_when_it_changes() -> None:
    monitor, accepted = make_monitor()
    for message in (alive(0), alive(0), alive(1), Exited(origin(1), " to SIGKILL")):
        monitor.handle(message, now=1.0)
    counts = [(message.alive, message.wanted) for message in accepted if isinstance(message, WorkersAlive)]
    assert counts == [(1, 2), (2, 2), (1, 2)]


def test_a_worker_that_was_not_heard_of_for_a_while_does_not_count_as_alive() -> None:
    """Nobody says of a worker on a node that is gone that it has exited."""
    monitor, accepted = make_monitor()
    for rank in (0, 1):
        monitor.handle(alive(rank), now=1.0)
    monitor.handle(alive(0), now=ALIVE_S + 2)
    monitor.supervise(now=2 * ALIVE_S + 3)
    counts = [message.alive for message in accepted if isinstance(message, WorkersAlive)]
    assert counts == [1, 2, 1, 0]


def test_silence_may_be_the_launchers_to_judge() -> None:
    monitor, accepted = make_monitor()
    monitor.handle(alive(1), now=1.0)
    assert monitor.supervise(now=START_S + 1, silence=False) == []
    assert (monitor.lost, notes(accepted)) == ("", [])
    monitor.handle(alive(1, idle_s=TIMEOUT_S + 1), now=START_S + 1)
    assert monitor.supervise(now=START_S + 1, silence=False) == [KillWorker(1)]


def test_workers_of_this_process_are_not_counted() -> None:
    monitor, accepted = make_monitor(workers=0)
    monitor.handle(step(4), now=1.0)
    monitor.handle(Finished(origin(), OUTCOME), now=2.0)
    assert monitor.supervise(now=100.0) == []
    assert not any(isinstance(message, WorkersAlive) for message in accepted)
    assert monitor.end_attempt() == OUTCOME


def test_memory_is_the_most_that_any_worker_has_held() -> None:
    monitor, _ = make_monitor()
    assert monitor.memory == {}
    monitor.handle(alive(0, memory=300.0), now=1.0)
    monitor.handle(alive(1, memory=700.0), now=1.0)
    assert monitor.memory == {"peak_memory_mb": 700.0}
