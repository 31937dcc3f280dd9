"""What Ray says of a worker that is gone, and what the pool makes of it: answers made by hand, without a cluster."""

from typing import Any

import pytest
from fakes import item
from ray._raylet import ActorID
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, OutOfMemoryError, RayError

from sightline.detection import ray_pool
from sightline.detection.plan import Chunk
from sightline.detection.pool import Died, Done, Task, WatchClock
from sightline.detection.ray_pool import _LOSSES, RayPool, _Seat, blames_node
from sightline.errors import WorkerError


def died(message: str, reason: Any = NodeDeathInfo.UNSPECIFIED) -> ActorDiedError:
    context = ActorDiedErrorContext(error_message=message, class_name="Actor", actor_id=ActorID.nil().binary())
    context.node_death_info.reason = reason
    return ActorDiedError(context)


NODE_DIED = died(
    "The actor died because its node has died. Node Id: 5e\n\tthe actor's node was terminated unexpectedly: no answer"
)
KILLED = died(
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed"
)
OF_NODES = {
    "node": NODE_DIED,
    "node, not noticed yet": ActorUnavailableError("RpcError: RPC error: Socket closed rpc_code: 14", None),
    "preempted": died("preempted", NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED),
    "node of a task": NodeDiedError("The node 5e has died"),
    "memory": OutOfMemoryError("1 worker(s) were killed due to the node running low on memory."),
}
OF_IMAGES = {"process": KILLED, "nothing known": ActorDiedError()}


@pytest.mark.parametrize("name", OF_NODES)
def test_a_lost_node_or_a_shortage_of_memory_is_no_fault_of_an_image(name: str) -> None:
    assert blames_node(OF_NODES[name])


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_process_that_died_may_have_died_over_an_image(name: str) -> None:
    assert not blames_node(OF_IMAGES[name])


class Answered(RayPool):
    """A pool whose workers have answered: an answer stands where Ray has a reference to one."""

    def __init__(self, size: int = 1) -> None:
        self.size, self._clock, self._measured = size, WatchClock(), ["a sample"]  # type: ignore[list-item]
        self._failures = self._admitted = self._losses = 0
        self._seats = [self._seat()]

    def _seat(self) -> _Seat:
        return _Seat(None, None)

    def hear(self, answer: object, *, ready: bool = True) -> list[Done | Died]:
        (seat,) = self._seats
        seat.ready = ready
        if ready:
            seat.tasks[answer] = Task(Chunk("000000-00000", (item("a"),)), (item("a"),))
        else:
            seat.starting = answer
        return self._hear(answer, seat)


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(answer: object) -> object:
        if isinstance(answer, RayError):
            raise answer
        return answer

    monkeypatch.setattr(ray_pool.ray, "get", get)


@pytest.mark.parametrize("error", [*OF_NODES.values(), *OF_IMAGES.values()])
def test_tasks_of_a_worker_that_is_gone_are_given_back(error: RayError) -> None:
    (outcome,) = Answered().hear(error)
    assert isinstance(outcome, Died)
    assert outcome.blames_node == (error in OF_NODES.values())


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("size", [1, 4])
def test_workers_that_are_lost_again_and_again_end_the_run(size: int, ready: bool) -> None:
    pool = Answered(size)
    most = _LOSSES + size - 2
    for _ in range(2):
        for _ in range(most):
            pool.hear(NODE_DIED, ready=ready)
        assert isinstance(pool.hear("rows")[0], Done), "somebody got on"
    for _ in range(most):
        pool.hear(OF_NODES["memory"], ready=ready)
    with pytest.raises(WorkerError, match=r"workers were lost .* low on memory.* run the same command with fewer"):
        pool.hear(OF_NODES["memory"], ready=ready)


def test_workers_that_die_before_they_begin_end_the_run() -> None:
    pool = Answered()
    for _ in range(2):
        assert pool.hear(KILLED, ready=False) == []
    with pytest.raises(WorkerError, match="workers died 3 times in a row before they could begin"):
        pool.hear(KILLED, ready=False)
