"""A job from its settings to its end: the pieces put together."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.cluster.gpus import num_gpus
from sightline.config import Config, DetectConfig
from sightline.detection.item import Source
from sightline.detection.job import Job
from sightline.detection.plan import Planner, Retry
from sightline.detection.pool import Died, Done, InProcess, Pool, Task
from sightline.detection.rows import ModelName
from sightline.detection.runner import Counts, Runner, Watcher
from sightline.detection.targets.lease import this_run
from sightline.detection.targets.target import Summary, Target
from sightline.detection.worker_spec import WorkerSpec, pack
from sightline.engines.form_cache import private_directory
from sightline.engines.settings import resolve_inference
from sightline.errors import ConfigError, Stopped, StorageError
from sightline.models.bundle import Bundle
from sightline.tracking.machine import Placement, this_machine

_SAMPLE = 4


@dataclass(frozen=True)
class DetectResult:
    """What became of a run.

    Attributes:
        name: Of the job.
        target: Where its rows are.
        counts: What this run did; `summary` is over all rows of the job.
        seconds: Of this run.
    """

    name: str
    target: str
    job: Job
    summary: Summary
    counts: Counts
    seconds: float
    pictures: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        rate = {"seconds": round(self.seconds, 3), "images_per_s": round(self.images_per_s, 3)}
        found = {"name": self.name, "target": self.target, "pictures": self.pictures, "job": self.job.describe()}
        return {**found, "summary": asdict(self.summary), "run": {**asdict(self.counts), **rate}}

    @property
    def images_per_s(self) -> float:
        """Of this run."""
        return self.counts.images / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class JobSpec:
    """A job that could begin: its identity, and what makes a worker."""

    job: Job
    worker: WorkerSpec
    bundle: Bundle
    config: DetectConfig
    cache: Path

    @property
    def on_ray(self) -> bool:
        """Whether workers are Ray's."""
        return self.config.workers > 1 or self.config.address is not None

    def packed(self) -> WorkerSpec:
        """What makes a worker elsewhere: with the files of the model, and of what was compiled of it."""
        if self.worker.settings.engine == "torch":
            return replace(self.worker, bundle=pack(self.bundle.path), compiled={})
        compiled = private_directory(self.cache) / self.bundle.hash
        if not compiled.is_dir():
            self.worker.open(self.bundle, self.cache).close()  # Compiled once here, not once by every worker.
        return replace(self.worker, bundle=pack(self.bundle.path), compiled=pack(compiled))


def prepare(source: Source, bundle: Bundle, model: ModelName, config: Config, *, device: str, cache: Path) -> JobSpec:
    """Settle everything that decides on the detections.

    Args:
        device: What workers compute on.
        cache: Where compiled forms of models are kept.
    """
    max_pixels = config.decode.max_pixels
    settings = resolve_inference(bundle, config.detect, device=device, max_pixels=max_pixels, concurrent=True)
    job = Job(source.name, model.model, model.version, bundle.hash, settings)
    return JobSpec(job, WorkerSpec({}, {}, settings, source, model), bundle, config.detect, cache)


def run_job(
    spec: JobSpec,
    target: Target,
    *,
    name: str,
    watcher: Watcher,
    retry_rejected: bool = False,
    watch_every_s: float | None = None,
) -> DetectResult:
    """Look at all images of the source that have no row yet.

    Args:
        name: Of the job.
        retry_rejected: Whether all images that were rejected are looked at again, not only those that could not be
            read.
        watch_every_s: Ask the source for new images for ever, with such pauses, also while source or target cannot be
            reached; until somebody stops it.

    Raises:
        Stopped: Somebody asked for it; the same job goes on later.
    """
    began, started, counts, owner = time.monotonic(), datetime.now(UTC), Counts(), this_run()
    target.open({**spec.job.describe(), "created": f"{started:%Y-%m-%dT%H:%M:%SZ}"})

    def result() -> DetectResult:
        seconds = time.monotonic() - began
        return DetectResult(name, target.location, spec.job, target.summary(), counts, seconds)

    def look(planner: Planner, pool: Pool, apart: Callable[[], Pool] | None) -> DetectResult:
        with closing(planner.known):
            lease_s, model = spec.config.lease_s, spec.worker.model
            given: dict[str, Any] = {"lease_s": lease_s, "watcher": watcher, "apart": apart, "owner": owner}
            Runner(target, planner, pool, model, counts, **given).run()
        done = result()
        target.write_manifest(manifest_of(done, spec, started))
        return done

    retry: Retry = "rejected" if retry_rejected else "unread"
    while True:
        try:
            with ExitStack() as stack:
                pool, apart = _pools(spec, stack, watcher.on_note)
                while True:
                    planner = Planner(target, spec.worker.source, chunk=spec.config.chunk, retry=retry)
                    done = look(planner, pool, apart)
                    if watch_every_s is None:
                        return done
                    retry = "none"  # Once: what was rejected again would be rejected every time.
                    _pause(watch_every_s, watcher)
        except StorageError as error:
            if watch_every_s is None:
                raise
            watcher.on_note(f"{error}; trying again in {watch_every_s:g} s")
            _pause(watch_every_s, watcher)


def _pause(seconds: float, watcher: Watcher) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if watcher.should_stop():
            raise Stopped
        time.sleep(min(0.2, seconds))


@contextmanager
def cluster(config: DetectConfig) -> Iterator[str]:
    """Connect to the cluster of the address, if there is one; gives what workers compute on."""
    if config.address is None:
        yield _local_device(config)
        return
    from sightline.cluster.connection import connected
    from sightline.detection.ray_pool import gpus_per_worker

    with connected(config.address):
        yield "cuda" if gpus_per_worker(config) else "cpu"


def manifest_of(result: DetectResult, spec: JobSpec, started: datetime) -> dict[str, Any]:
    """What is kept beside the rows."""
    config = spec.config
    launcher = "ray" if spec.on_ray else "process"
    placement = Placement(workers=config.workers, threads=spec.worker.settings.threads, launcher=launcher)
    return {
        **result.to_json(),
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "finished": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "sightline_version": __version__,
        "classes": list(spec.bundle.info.classes),
        "machine": this_machine(placement).to_dict(),
    }


class LatePool:
    """Workers that are made when there is something to do: a run that finds everything done loads no model."""

    def __init__(self, size: int, make: Callable[[Task], Pool]) -> None:
        self.size, self._make = size, make
        self._pool: Pool | None = None
        self._held: list[Task] = []

    @property
    def alive(self) -> int:
        """See `Pool.alive`."""
        return self._pool.alive if self._pool else 0

    def takes(self, *, alone: bool = False) -> bool:
        """See `Pool.takes`."""
        return not self._held and (self._pool is None or self._pool.takes(alone=alone))

    def submit(self, task: Task) -> None:
        """See `Pool.submit`."""
        if self._pool is None:
            self._pool = self._make(task)
        self._held.append(task)
        self._pass_on()

    def wait(self, timeout_s: float) -> list[Done | Died]:
        """See `Pool.wait`."""
        if self._pool is None:
            time.sleep(timeout_s)
            return []
        outcomes = self._pool.wait(timeout_s)
        self._pass_on()
        return outcomes

    def close(self) -> None:
        """See `Pool.close`."""
        if self._pool:
            self._pool.close()

    def _pass_on(self) -> None:
        """Workers may still be starting."""
        assert self._pool is not None
        while self._held and self._pool.takes(alone=self._held[0].alone):
            self._pool.submit(self._held.pop(0))


def _pools(spec: JobSpec, stack: ExitStack, on_note: Callable[[str], None]) -> tuple[Pool, Callable[[], Pool] | None]:
    """The workers, and those for chunks that killed a run where workers are in its own process."""
    config = spec.config
    if spec.on_ray:
        from sightline.cluster.connection import connected
        from sightline.detection.ray_pool import RayPool

        def on_ray(task: Task) -> Pool:
            stack.enter_context(connected(config.address))
            pool = RayPool(spec.packed(), config, task.items[:_SAMPLE], on_note=on_note)
            stack.callback(pool.close)  # Before the connection ends.
            return pool

        return LatePool(config.workers, on_ray), None

    from sightline.detection.child import Child

    def own(_: Task) -> Pool:
        worker = spec.worker.worker_of(spec.worker.open(spec.bundle, spec.cache))
        pool = InProcess(worker, stall_s=config.stall_s)
        stack.callback(pool.close)
        return pool

    return LatePool(1, own), lambda: Child(spec.packed(), stall_s=config.stall_s)


def _local_device(config: DetectConfig) -> str:
    gpus = num_gpus()
    if config.gpus_per_worker and not gpus:
        raise ConfigError(
            f"detect.gpus_per_worker is {config.gpus_per_worker:g}, and torch finds no GPU on this machine: leave "
            "it out, or check with `nvidia-smi` that there is one and that torch was installed with CUDA"
        )
    if config.gpus_per_worker is not None:
        return "cuda" if config.gpus_per_worker else "cpu"
    return "cuda" if gpus >= config.workers else "cpu"
