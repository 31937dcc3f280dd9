"""Workers on a Ray cluster, by Ray Train.

Ray places the workers and begins again with all of them when one is lost; they join their process group by themselves,
at an address that only the cluster reaches. The run's directory stays with the driver: workers reach it through the
`DriverActor` on the driver's machine, which writes checkpoints there and passes on what rank 0 reports. So no worker
needs a disk in common with the driver.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sightline.cluster.connection import connected, list_nodes
from sightline.cluster.preflight import Demand, share_cpus
from sightline.config import Config
from sightline.errors import TrainingError
from sightline.tracking.machine import Placement
from sightline.training.devices import backend_for
from sightline.training.job import Job
from sightline.training.messages import Outcome
from sightline.training.monitor import RESTARTS, RunMonitor
from sightline.training.ray_worker import FILES, DriverActor, work_on_ray

_POLL_S = 0.1
_SETTINGS = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Ray trains in a thread, and glibc's memory for threads goes back to the kernel after every step.
    "MALLOC_ARENA_MAX": "1",
}


class RayLauncher:
    """Trains on the cluster that this process is connected to."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._nodes = list_nodes()
        self._gpus = self._gpus_per_worker()
        workers, threads = config.workers, config.train.threads
        self._cpus = share_cpus(
            self._nodes, Demand(workers.count), threads=threads, gpus=self._gpus, oversubscribe=workers.oversubscribe
        )
        self._threads = threads or max(1, int(self._cpus))

    @property
    def placement(self) -> Placement:
        """How the run is spread."""
        count = self._config.workers.count
        return Placement(
            nodes=min(count, len(self._nodes)),
            workers=count,
            threads=self._threads,
            devices=("cuda" if self._gpus else "cpu",),
            backend=self._backend.rpartition(":")[2],
            launcher="ray",
        )

    @property
    def num_supervised(self) -> int:
        """See `Launcher.num_supervised`."""
        return self._config.workers.count

    def train(self, job: Job, directory: Path, monitor: RunMonitor, should_stop: Callable[[], bool]) -> Outcome:
        """Train to the end; where the cluster loses workers again and again, as long as the run makes progress."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote: Any = ray.remote(num_cpus=0, concurrency_groups={FILES: 8})(DriverActor)  # type: ignore[call-overload]
        actor = remote.options(scheduling_strategy=here).remote(str(directory.absolute()), job.parts.train.location)
        weights = ray.put(job.weights)
        job = replace(job, weights=None, config=self._settled(job.config))
        given = {"job": job, "weights": [weights], "actor": actor, "backend": self._backend}
        try:
            return self._fit_until_no_progress(_Driver(actor, monitor, should_stop), given, monitor)
        finally:
            ray.kill(actor)  # Workers that are left, if any, end with it.

    def _fit_until_no_progress(self, driver: "_Driver", given: dict[str, Any], monitor: RunMonitor) -> Outcome:
        while True:
            saves = monitor.saves
            with tempfile.TemporaryDirectory(prefix="sightline-ray-") as storage:
                driver.run(self._trainer(given, storage))
            outcome = monitor.end_attempt()
            if outcome is not None:
                return outcome
            if monitor.saves == saves:
                raise TrainingError(
                    f"workers died {RESTARTS + 1} times without a new checkpoint in between: {driver.why_it_failed}"
                )

    def _trainer(self, given: dict[str, Any], storage: str) -> DataParallelTrainer:
        """Workers join by themselves: the process group of Ray's TorchTrainer meets at a port on every interface."""
        failures = FailureConfig(max_failures=RESTARTS)
        return DataParallelTrainer(
            work_on_ray,
            train_loop_config=given,
            scaling_config=self._scaling(),
            run_config=RunConfig(storage_path=storage, failure_config=failures),
        )

    def _scaling(self) -> ScalingConfig:
        resources: dict[str, float] = {"CPU": self._cpus}
        if self._gpus:
            resources["GPU"] = self._gpus
        return ScalingConfig(
            num_workers=self._config.workers.count,
            use_gpu=bool(self._gpus),
            resources_per_worker=resources,
            placement_strategy="SPREAD",
        )

    def _gpus_per_worker(self) -> float:
        workers, device = self._config.workers, self._config.train.device
        if workers.gpus_per_worker is not None:
            return workers.gpus_per_worker
        return float(device == "cuda" or (device == "auto" and sum(node.gpus for node in self._nodes) >= workers.count))

    @property
    def _backend(self) -> str:
        return backend_for("cuda" if self._gpus else "cpu", shared=self._gpus < 1)

    def _settled(self, config: Config) -> Config:
        """Threads and device as they were placed; a worker must not decide by what its node happens to have."""
        placed = {"threads": self._threads, "device": "cuda" if self._gpus else "cpu"}
        return config.model_copy(update={"train": config.train.model_copy(update=placed)})


@contextmanager
def on_ray(config: Config) -> Iterator[RayLauncher]:
    """Connect to the cluster at the address, or start one in this machine; quietly."""
    settings = {**_SETTINGS, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(config.workers.hang_after_s)}
    with connected(config.workers.address, settings):
        yield RayLauncher(config)


class _Driver:
    """Passes messages of the workers to the monitor while Ray Train works.

    Attributes:
        why_it_failed: What Ray Train said when it gave up.
    """

    def __init__(self, actor: Any, monitor: RunMonitor, should_stop: Callable[[], bool]) -> None:
        self._actor, self._monitor, self._should_stop = actor, monitor, should_stop
        self._stopping = False
        self._ended: set[tuple[int, int]] = set()
        self.why_it_failed: BaseException | None = None

    def run(self, trainer: DataParallelTrainer) -> None:
        """Until Ray Train ends."""
        thread = threading.Thread(target=self._fit, args=(trainer,), daemon=True, name="sightline-ray-train")
        thread.start()
        while thread.is_alive():
            self._poll()
            if self._should_stop() and not self._stopping:
                self._stopping = True
                ray.get(self._actor.ask_to_stop.remote())
            thread.join(_POLL_S)
        self._poll()

    def _fit(self, trainer: DataParallelTrainer) -> None:
        try:
            trainer.fit()
        except BaseException as error:  # In a thread: whoever waits for the run decides.
            self.why_it_failed = error

    def _poll(self) -> None:
        # Until there is nothing left: whoever subscribes to messages may take long, and workers report meanwhile.
        while received := ray.get(self._actor.receive.remote()):
            for message, at in received:
                self._monitor.handle(message, at)
        # Workers that are silent are Ray's to find: it ends all of an attempt when it has lost one.
        for kill in self._monitor.supervise(time.monotonic(), silence=False):
            worker = self._monitor.attempt, kill.rank
            if worker not in self._ended:
                self._ended.add(worker)
                self._actor.end_worker.remote(*worker)
