"""Workers on a Ray cluster, by Ray Train.

Ray places the workers, joins them into a process group, and begins again with all of them when one is lost. The run's
directory stays with the driver: workers reach it through the `Post`, an actor on the driver's machine that writes
checkpoints there and passes on what rank 0 tells. So no worker needs a disk in common with the driver.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sightline.config import Config, WorkersConfig
from sightline.data.served import DirectoryServer, within_reach
from sightline.errors import ConfigError, SightlineError, TrainingError
from sightline.tracking.machine import Placement
from sightline.training.checkpoint import Checkpoint, CheckpointDirectory
from sightline.training.collective import LostWorkers
from sightline.training.job import BEST, CHECKPOINTS, Desk, Job, Outcome, work
from sightline.training.keeper import Keeper, Losses
from sightline.training.loop import Stopped
from sightline.training.precision import pick_device
from sightline.training.process_group import ProcessGroup, backend_for
from sightline.training.timing import peak_memory

_BEAT_S = 1.0
_LOOK_EVERY_S = 0.1
_END_S = 60.0
_SETTINGS = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RayLauncher:
    """Trains on the cluster that this process is connected to."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        self._gpus = self._gpus_per_worker()
        self._cpus = self._cpus_per_worker()

    @property
    def placement(self) -> Placement:
        """How the run is spread."""
        count = self._config.workers.count
        return Placement(
            nodes=min(count, len(self._nodes)),
            workers=count,
            threads=self._cpus,
            devices=("cuda" if self._gpus else "cpu",),
            backend="nccl" if self._gpus else "gloo",
            launcher="ray",
        )

    def train(self, job: Job, directory: Path, keeper: Keeper) -> Outcome:
        """Train to the end."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(Post)
        options = {"num_cpus": 0, "max_concurrency": 16, "scheduling_strategy": here}
        post = actor.options(**options).remote(str(directory), job.dataset.location)
        weights = ray.put(job.weights)
        job = replace(job, weights=None, config=_with_threads(job.config, self._cpus))
        with tempfile.TemporaryDirectory(prefix="sightline-ray-") as storage:
            trainer = TorchTrainer(
                _work_on_ray,
                train_loop_config={"job": job, "weights": [weights], "post": post},
                torch_config=TorchConfig(backend=backend_for(torch.device("cuda" if self._gpus else "cpu"))),
                scaling_config=self._scaling(),
                run_config=RunConfig(
                    name=directory.name, storage_path=storage, failure_config=FailureConfig(max_failures=-1)
                ),
            )
            return _Driver(trainer, post, keeper, self._config.workers).run()

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
        asked, count = self._config.workers.gpus_per_worker, self._config.workers.count
        if asked is not None:
            return asked
        return float(self._config.train.device != "cpu" and self._total("GPU") >= count)

    def _cpus_per_worker(self) -> int:
        """Raises if the cluster is too small, for Ray would wait for ever."""
        count, nodes = self._config.workers.count, len(self._nodes)
        smallest = min(node.get("CPU", 0) for node in self._nodes)
        wanted = self._config.train.threads or max(1, int(smallest // -(-count // nodes)))
        if self._total("CPU") < count * wanted or self._total("GPU") < count * self._gpus:
            raise ConfigError(
                f"the Ray cluster has {self._total('CPU'):g} CPUs and {self._total('GPU'):g} GPUs; {count} workers "
                f"need {count * wanted} and {count * self._gpus:g}: give fewer --workers, or a smaller train.threads"
            )
        return wanted

    def _total(self, resource: str) -> float:
        return float(sum(node.get(resource, 0) for node in self._nodes))


@contextmanager
def on_ray(config: Config) -> Iterator[RayLauncher]:
    """Connect to the cluster at the address, or start one in this machine; quietly."""
    os.environ.update({**_SETTINGS, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(config.workers.hang_after_s)})
    for name in ("ray", "ray.train", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    ours = not ray.is_initialized()
    if ours:
        _connect(config.workers)
    try:
        yield RayLauncher(config)
    finally:
        if ours:
            ray.shutdown()


def _connect(config: WorkersConfig) -> None:
    address = config.address or "local"
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env={"env_vars": {name: os.environ[name] for name in os.environ if name.startswith("RAY_TRAIN_")}},
        )
    except ConnectionError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address!r} ({error}): is it up? --address local starts one"
        ) from None


class Post:
    """Stands between workers anywhere and the driver: keeps the run's directory and passes messages on."""

    def __init__(self, directory: str, dataset: str) -> None:
        self._files = DirectoryServer(dataset)
        self._stores = {
            CHECKPOINTS: CheckpointDirectory(Path(directory) / CHECKPOINTS),
            BEST: CheckpointDirectory(Path(directory) / BEST, keep=1),
        }
        self._messages: list[tuple[int, str, Any]] = []
        self._lock = threading.Lock()
        self._stop = self._over = False

    def save(self, store: str, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in the run's directory; returns when it is safe."""
        self._stores[store].save(checkpoint)

    def load_latest(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        return self._stores[CHECKPOINTS].load_latest()

    def size(self, name: str) -> int:
        """Bytes of a file of the dataset, for a worker that does not see it."""
        return self._files.size(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file of the dataset."""
        return self._files.read(name, offset, length)

    def tell(self, rank: int, word: str, content: Any) -> None:
        """Leave a message for the driver."""
        with self._lock:
            self._messages.append((rank, word, content))

    def take(self) -> list[tuple[int, str, Any]]:
        """All messages since the last call."""
        with self._lock:
            taken, self._messages = self._messages, []
        return taken

    def beat(self, rank: int, memory: dict[str, float]) -> bool:
        """A worker lives; whether it is to stop."""
        self.tell(rank, "beat", memory)
        return self._stop

    def ask_to_stop(self) -> None:
        """Let the workers save themselves and end."""
        self._stop = True

    def end(self) -> None:
        """The run is over; workers that come now have nothing to do."""
        self._over = True

    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self._over


@dataclass
class _Store:
    """Rank 0's way to the run's directory."""

    post: Any
    name: str

    def save(self, checkpoint: Checkpoint) -> None:
        try:
            ray.get(self.post.save.remote(self.name, checkpoint))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def load_latest(self) -> Checkpoint | None:
        found: Checkpoint | None = ray.get(self.post.load_latest.remote())
        return found


@dataclass
class _Files:
    """The driver's dataset, for a worker that does not see it."""

    post: Any

    def size(self, name: str) -> int:
        return int(ray.get(self.post.size.remote(name)))

    def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(ray.get(self.post.read.remote(name, offset, length)))


def _work_on_ray(settings: dict[str, Any]) -> None:
    """What Ray Train runs in every worker."""
    context, post, job = ray.train.get_context(), settings["post"], settings["job"]
    rank = context.get_world_rank()
    if ray.get(post.is_over.remote()):
        return
    job = replace(job, dataset=within_reach(job.dataset, _Files(post)))
    stop = threading.Event()
    threading.Thread(target=_beat, args=(post, rank, stop), daemon=True, name="sightline-beat").start()
    desk = Desk(should_stop=stop.is_set)
    if rank == 0:
        job = replace(job, weights=ray.get(settings["weights"][0]))
        desk = Desk(
            _Store(post, CHECKPOINTS), _Store(post, BEST), lambda *told: post.tell.remote(0, *told), stop.is_set
        )
    device = pick_device(job.config.train.device) if torch.cuda.is_available() else torch.device("cpu")
    try:
        collective = ProcessGroup()
        outcome = work(job, collective, desk, device=device)
        collective.barrier()
    except LostWorkers:
        raise
    except Stopped:
        ray.get(post.tell.remote(rank, "stopped", None))
    except SightlineError as error:
        ray.get(post.tell.remote(rank, "failed", error))
    else:
        if rank == 0:
            ray.get(post.tell.remote(rank, "done", outcome))


def _beat(post: Any, rank: int, stop: threading.Event) -> None:
    while True:
        if ray.get(post.beat.remote(rank, peak_memory())):
            stop.set()
        time.sleep(_BEAT_S)


class _Driver:
    """Hears the post while Ray Train works."""

    def __init__(self, trainer: TorchTrainer, post: Any, keeper: Keeper, config: WorkersConfig) -> None:
        self._trainer, self._post, self._keeper, self._count = trainer, post, keeper, config.count
        self._losses = Losses()
        self._ready = False
        self._heard: dict[int, float] = {}
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._fit_error: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, daemon=True, name="sightline-ray-train")

    def run(self) -> Outcome:
        self._thread.start()
        stopping = False
        while self._thread.is_alive():
            self._hear()
            if self._keeper.should_stop() and not stopping:
                stopping = True
                ray.get(self._post.ask_to_stop.remote())
            self._thread.join(_LOOK_EVERY_S)
        self._hear()
        if self._error:
            raise self._error
        if self._outcome is None:
            raise TrainingError(f"Ray Train ended without a result: {self._fit_error}")
        return self._outcome

    def _fit(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as error:
            self._fit_error = error

    def _hear(self) -> None:
        for rank, word, content in ray.get(self._post.take.remote()):
            self._heed(rank, word, content)
        now = time.monotonic()
        alive = sum(now - heard < 5 * _BEAT_S for heard in self._heard.values())
        self._keeper.on_workers(alive, self._count)

    def _heed(self, rank: int, word: str, content: Any) -> None:
        match word:
            case "beat":
                self._heard[rank] = time.monotonic()
                self._keeper.on_memory(rank, content)
            case "done":
                self._outcome = content
                ray.get(self._post.end.remote())
            case "stopped":
                self._end(Stopped())
            case "failed":
                self._end(content)
            case _:
                if word == "ready" and self._ready:
                    self._keeper.on_lost("a worker was lost")
                    self._give_up_if_stuck()
                self._ready = self._ready or word == "ready"
                self._losses.progress() if word == "checkpoint" else None
                self._keeper.hear(word, content)

    def _give_up_if_stuck(self) -> None:
        if self._losses.another():
            self._end(TrainingError(f"workers died {self._losses.count} times without a new checkpoint in between"))

    def _end(self, error: BaseException) -> None:
        self._error = self._error or error
        ray.get(self._post.end.remote())


def _with_threads(config: Config, threads: int) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})
