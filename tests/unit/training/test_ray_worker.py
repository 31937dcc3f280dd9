"""What a worker on Ray does about a driver that it cannot reach; the rest takes a cluster: `integration`."""

import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sightline.errors import ConfigError, StaleAttemptError
from sightline.lifeline import PARENT_LOST
from sightline.training.checkpoint import Checkpoint
from sightline.training.messages import (
    CheckpointSaved,
    Crashed,
    Failed,
    Finished,
    Message,
    Outcome,
    RunProgress,
)

HEARTBEAT = """
    import time
    from sightline.training.ray_worker import _Contact
    class Lost:
        def remote(self, *told):
            raise ConnectionError("the driver's actor is gone")
    class Actor:
        send = is_over = Lost()
    _Contact(Actor())
    time.sleep(10)  # In the middle of a step that takes long.
    print("still here")
"""


def test_a_worker_that_loses_contact_with_the_driver_ends() -> None:
    """At once, whatever its main thread does: nobody would see it hang."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(HEARTBEAT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == ""
    assert done.returncode == PARENT_LOST
    assert "the driver's actor is gone" in done.stderr


def test_the_drivers_actor_refuses_older_attempts(tmp_path: Path) -> None:
    """Its methods are plain Python; Ray only calls them from elsewhere."""
    pytest.importorskip("ray")
    from sightline.training.ray_worker import DriverActor

    actor = DriverActor(str(tmp_path), str(tmp_path))
    first, second = actor.begin_attempt(), actor.begin_attempt()
    assert (first.attempt, second.attempt, second.run) == (1, 2, tmp_path.name)
    state = Checkpoint({"weight": torch.zeros(1)}, None, {}, {"step": 1})
    assert actor.send(CheckpointSaved(first)) == "exit"
    with pytest.raises(StaleAttemptError):
        actor.save("checkpoints", state, first.attempt)
    assert actor.send(CheckpointSaved(second)) == "continue"
    actor.save("checkpoints", state, second.attempt)
    assert [message for message, _ in actor.receive()] == [CheckpointSaved(second)]
    actor.ask_to_stop()
    assert actor.send(CheckpointSaved(second)) == "stop"
    assert not actor.is_over()


def test_the_last_words_of_a_worker_that_is_to_end_count(tmp_path: Path) -> None:
    from sightline.training.ray_worker import DriverActor

    actor = DriverActor(str(tmp_path), str(tmp_path))
    origin = actor.begin_attempt()
    actor.end_worker(origin.attempt, origin.rank)
    finished = Finished(origin, Outcome(RunProgress(step=9), {}, 0))
    assert actor.send(finished) == "exit"
    assert [message for message, _ in actor.receive()] == [finished]
    assert actor.is_over()


def test_a_save_that_is_under_way_counts_before_the_next_attempt_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.training import checkpoint as module
    from sightline.training.ray_worker import DriverActor

    actor = DriverActor(str(tmp_path), str(tmp_path))
    origin, write, writing = actor.begin_attempt(), module._write_files, threading.Event()

    def slowly(directory: Path, content: Checkpoint) -> None:
        writing.set()
        time.sleep(0.5)
        write(directory, content)

    monkeypatch.setattr(module, "_write_files", slowly)
    state = Checkpoint({"weight": torch.zeros(1)}, None, {}, {"step": 1})
    with ThreadPoolExecutor(1) as lost:
        saved = lost.submit(actor.save, "checkpoints", state, origin.attempt)
        assert writing.wait(10)
        actor.begin_attempt()
        latest = actor.load_latest()
        saved.result()
    assert latest is not None
    assert latest.progress == {"step": 1}


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    from sightline.training.ray_worker import DriverActor

    actor = DriverActor(str(tmp_path), str(tmp_path))
    origin = actor.begin_attempt()

    def save(step: int) -> None:
        state = Checkpoint({"weight": torch.zeros(1)}, None, {}, {"step": step})
        actor.save("checkpoints", state, origin.attempt)

    save(1)
    save(2)
    (tmp_path / "checkpoints" / "step-00000002" / "weights.safetensors").write_bytes(b"torn")
    latest = actor.load_latest()
    assert latest is not None
    assert latest.progress == {"step": 1}
    save(3)
    assert sorted(place.name for place in (tmp_path / "checkpoints").iterdir()) == ["step-00000001", "step-00000003"]


class _Local:
    """An actor whose methods run here."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self._actor, name))


@pytest.mark.parametrize(
    ("error", "kind"), [(OSError("no address"), Crashed), (ConfigError("no GPU"), Failed)], ids=["crashed", "failed"]
)
def test_workers_that_cannot_meet_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Message]
) -> None:
    """Ray would start them again and again."""
    from sightline.training import ray_worker as module

    def fail(*_: object) -> None:
        raise error

    actor = module.DriverActor(str(tmp_path), str(tmp_path))
    context = SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 2, get_local_world_size=lambda: 2)
    monkeypatch.setattr(module.ray, "get", lambda result, timeout=None: result)
    monkeypatch.setattr(module.ray.train, "get_context", lambda: context)
    monkeypatch.setattr(module.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(module, "bind_to_address", fail)
    monkeypatch.setattr(module._Contact, "_beat", lambda self: None)  # It would go on after the test.
    with pytest.raises(type(error)):
        module.work_on_ray({"actor": _Local(actor)})
    ((message, _),) = actor.receive()
    assert isinstance(message, kind)
    assert (message.origin.run, message.origin.rank) == (tmp_path.name, 1)
    assert actor.is_over()
