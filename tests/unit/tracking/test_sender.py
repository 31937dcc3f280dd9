"""The sender: large batches, nothing lost while a server is away, nobody waits, memory bounded."""

import logging
import threading
import time

import pytest

from sightline.tracking.sender import BATCH, Point, Sender


class Server:
    """Takes points, unless it is away."""

    def __init__(self) -> None:
        self.batches: list[list[Point]] = []
        self.away = False
        self.tries = 0

    def take(self, points: list[Point]) -> None:
        self.tries += 1
        if self.away:
            raise ConnectionError("nobody there")
        self.batches.append(points)

    @property
    def steps(self) -> list[int]:
        return [point.step for batch in self.batches for point in batch]


def points(*steps: int) -> list[Point]:
    return [Point("loss", 1.0, step, 0) for step in steps]


def wait_for_tries(server: Server, tries: int) -> None:
    for _ in range(500):
        if server.tries >= tries:
            return
        time.sleep(0.01)
    raise AssertionError(f"only {server.tries} tries")


def test_many_points_go_in_few_batches_in_order() -> None:
    server = Server()
    sender = Sender(server.take)
    sender.start()
    for step in range(2 * BATCH + 10):
        sender.add(points(step))
    assert sender.close(10)
    assert server.steps == list(range(2 * BATCH + 10))
    assert len(server.batches) == 3


def test_an_outage_is_told_once_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.away = True
    sender = Sender(server.take)
    sender.start()
    with caplog.at_level(logging.WARNING, "sightline.tracking"):
        for step in range(3):
            sender.add(points(step))
            sender.flush()
            wait_for_tries(server, step + 1)
    assert [record.getMessage().split(".")[0] for record in caplog.records] == ["nobody there"]
    server.away = False
    assert sender.close(10)
    assert server.steps == [0, 1, 2]


def test_the_queue_is_bounded_and_keeps_the_newest() -> None:
    server = Server()
    sender = Sender(server.take, limit=5)
    sender.add(points(*range(20)))
    sender.start()
    assert sender.close(10)
    assert server.steps == [15, 16, 17, 18, 19]


def test_nobody_waits_for_a_server_that_hangs() -> None:
    hanging = threading.Event()
    sender = Sender(lambda points: hanging.wait(30) and None)  # type: ignore[arg-type, return-value]
    sender.start()
    started = time.monotonic()
    for step in range(100):
        sender.add(points(step))
        sender.flush()
    assert not sender.close(0.2)
    assert time.monotonic() - started < 5
    hanging.set()


def test_a_sign_of_life_without_numbers() -> None:
    server = Server()
    sender = Sender(server.take, every_s=0.01)
    sender.start()
    wait_for_tries(server, 3)
    assert sender.close(10)
    assert server.steps == []
