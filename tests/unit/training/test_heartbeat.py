"""When a worker hangs, by what its heartbeat says."""

import time

import pytest

from sightline.training.heartbeat import Activity, Heartbeat, Phase


@pytest.mark.parametrize(
    ("phase", "idle_s", "waiting", "slowest_step_s", "hangs"),
    [
        ("step", 5, False, 0.1, False),
        ("step", 31, False, 0.1, True),
        ("step", 31, True, 0.1, False),  # Another worker keeps it waiting.
        ("step", 90, False, 5.0, False),  # Steps of five seconds may take 100.
        ("step", 101, False, 5.0, True),
        ("step", 500, False, 0.0, False),  # The first step, which nothing can be compared with.
        ("start", 500, False, 0.0, False),
        ("start", 601, False, 0.0, True),
        ("data", 599, False, 0.1, False),
        ("evaluation", 601, False, 0.1, True),
        ("checkpoint", 599, False, 0.1, False),
    ],
)
def test_a_hang(phase: Phase, idle_s: float, waiting: bool, slowest_step_s: float, hangs: bool) -> None:
    beat = Heartbeat(3, phase, idle_s, waiting, slowest_step_s, {})
    assert beat.hangs(30.0) is hangs


def test_a_slow_step_is_measured_between_its_collectives() -> None:
    """Not only after the last of them: the slowest part is what the next steps are compared with."""
    activity = Activity()
    activity.enter("step", step=1)
    time.sleep(0.05)
    with activity.waiting():
        time.sleep(0.2)
    activity.enter("data")
    assert 0.05 <= activity.beat({}).slowest_step_s < 0.2


def test_waiting_over_nccl_looks_like_work() -> None:
    """The host goes on at once, and waits where it reads the sum."""
    assert not Heartbeat(3, "step", 599, False, 0.1, {}, on_gpu=True).hangs(30.0)
    assert Heartbeat(3, "step", 601, False, 0.1, {}, on_gpu=True).hangs(30.0)


def test_what_a_heartbeat_says() -> None:
    activity = Activity()
    assert activity.beat({}).phase == "start"
    activity.enter("step", step=4)
    time.sleep(0.02)
    assert activity.beat({}).idle_s >= 0.02
    activity.enter("data")
    beat = activity.beat({"peak_memory_mb": 5.0})
    assert (beat.step, beat.phase, beat.waiting, beat.memory) == (4, "data", False, {"peak_memory_mb": 5.0})
    assert beat.slowest_step_s >= 0.02
    assert beat.idle_s < 0.02
    with activity.waiting():
        assert activity.beat({}).waiting
    assert not activity.beat({}).waiting
