"""Where the time and the memory of a run go; GPUs are played by small fakes."""

from typing import Any

import pytest
import torch

from sightline.training.heartbeat import Heartbeat
from sightline.training.messages import Alive, Origin, RunProgress
from sightline.training.monitor import RunMonitor
from sightline.training.timing import TimedCollective, peak_memory

MB = 1 << 20


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


class Event:
    """A CUDA event on a device that is 10 ms further at every record; `reached` is how far the device has come."""

    now = 0.0
    reached = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        Event.now += 10
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.reached

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


class Pair:
    """Two workers of whom only one is here."""

    rank, size = 0, 2

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    broadcast = all_reduce

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def barrier(self) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[Event]:
    def refuse(*_: object) -> None:
        raise AssertionError("the host waited for the GPU")

    Event.now = Event.reached = 0.0
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return Event


def test_timing_an_all_reduce_never_waits_for_the_gpu(device: type[Event]) -> None:
    timed = TimedCollective(Pair())
    for _ in range(3):
        timed.all_reduce(torch.zeros(1).as_subclass(OnGpu))
    assert timed.seconds == 0, "nothing has completed yet"
    device.reached = 45
    assert timed.seconds == pytest.approx(0.02), "two of three have"
    device.reached = 60
    assert timed.seconds == pytest.approx(0.03)
    assert timed.seconds == pytest.approx(0.03), "each counts once"


def test_the_gpu_memory_of_every_rank_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat thread's current GPU is the first; rank 1 trains on the second."""
    held = {0: 0, 1: 512 * MB}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=0: held[device])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=0: held[device])
    of_rank_1 = peak_memory()
    assert of_rank_1["peak_gpu_memory_mb"] == 512
    monitor = RunMonitor("run", RunProgress(), num_workers=2)
    monitor.begin_attempt(1, 0.0)
    for rank, memory in enumerate(({"peak_memory_mb": 900.0, "peak_gpu_memory_mb": 300.0}, of_rank_1)):
        monitor.handle(Alive(Origin("run", 1, rank), Heartbeat(0, "step", 0.0, False, 0.0, memory)), 0.0)
    assert monitor.memory["peak_gpu_memory_mb"] == 512


def test_without_a_gpu_only_the_process_is_reported() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert list(peak_memory()) == ["peak_memory_mb"]
