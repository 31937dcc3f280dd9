"""The worker in the process: what happens when it gets nowhere."""

import collections
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from fakes import MODEL, Images, item, jpeg

from sightline.detection.item import Item
from sightline.detection.plan import Chunk
from sightline.detection.pool import Done, InProcess, StallTimer, Task, WatchClock
from sightline.detection.tiles import Tiling
from sightline.detection.worker import Worker
from sightline.engines.opening import open_predictor
from sightline.errors import WorkerError
from sightline.models.bundle import Bundle
from support.inference import TORCH


@dataclass
class Hanging(Images):
    """Does not answer when it is asked for "hang", until the test is over."""

    over: threading.Event = field(default_factory=threading.Event)

    def read(self, item: Item) -> bytes:
        if item.ref == "hang":
            self.over.wait(60)
        return super().read(item)


@pytest.fixture
def source() -> Iterator[Hanging]:
    source = Hanging({"a": jpeg(), "hang": jpeg()})
    yield source
    source.over.set()


def task(name: str) -> Task:
    return Task(Chunk(f"000000-{name}", (item(name),)), (item(name),))


def test_a_worker_that_gets_nowhere_ends_the_run(bundle: Bundle, source: Hanging) -> None:
    worker = Worker(open_predictor(bundle, TORCH), source, TORCH, MODEL)
    pool = InProcess(worker, stall_s=0.5)
    pool.submit(task("a"))
    done: list[object] = []
    while not done:
        done += pool.wait(0.05)
    assert isinstance(done[0], Done)
    for _ in range(100):  # Nothing to do is not getting nowhere.
        assert pool.wait(0.01) == []
    pool.submit(task("hang"))
    with pytest.raises(WorkerError, match=r"no image was finished in 0.5 s \(chunk 000000-hang under way\)") as failed:
        collections.deque(iter(lambda: pool.wait(0.05), None))
    assert "run the same command again" in str(failed.value)
    pool.close()
    assert not source.over.is_set(), "closing does not wait for what hangs"


@pytest.mark.parametrize(
    ("seen", "quiet_s"), [([0, 0, 0, 0], [0, 1, 2, 3]), ([0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 0, 1])]
)
def test_a_stall_is_time_without_progress(seen: list[int], quiet_s: list[float]) -> None:
    timer = StallTimer()
    assert [timer.wait(progress, 1.0) for progress in seen] == quiet_s


def test_time_in_which_nobody_watched_is_no_stall() -> None:
    times = iter([100.0, 100.2, 160.2, 160.4, 161.0])
    clock = WatchClock(lambda: next(times))
    seen = []
    for _ in range(4):
        clock.look()
        seen.append(clock.now)
    assert seen == pytest.approx([0.2, 1.2, 1.4, 2.0])


def test_tiles_are_progress(bundle: Bundle) -> None:
    """An image of many tiles may take longer than a stall."""
    settings = replace(TORCH, tile=64, overlap=0.25)
    worker = Worker(open_predictor(bundle, TORCH), Images({"wide": jpeg(200, 100)}), settings, MODEL)
    worker.process("chunk", (item("wide"),))
    worker.close()
    assert worker.done == len(Tiling(64, 0.25).tiles(width=200, height=100)) > 1
