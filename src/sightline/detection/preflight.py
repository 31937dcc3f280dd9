"""Whether a detection job fits the machines it would run on, checked before a model is loaded or a worker starts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sightline.cluster.preflight import PROCESS_MEMORY, Demand, Node, check_workers
from sightline.config import DetectConfig
from sightline.detection.detect import JobSpec

REMEDY = "a smaller --batch, --size or --tile"
_PHOTO = 12_000_000 * 3
"""Bytes of a decoded photo of twelve megapixels; larger images take more while they are decoded."""
_FEATURES = 32
"""Bytes that a network holds for each byte of its input."""


def check_cores(config: DetectConfig, nodes: Sequence[Node]) -> None:
    """Refuse far too many workers, before the model is known.

    Raises:
        ConfigError: There are more workers than the cores can carry.
    """
    check_workers(Demand(config.workers), nodes, oversubscribe=config.oversubscribe)


def check_detection(spec: JobSpec, nodes: Sequence[Node], *, on_note: Callable[[str], None]) -> None:
    """Refuse a job whose workers do not fit.

    Raises:
        ConfigError: They do not fit; says what to change.
    """
    config = spec.config
    threads = config.threads or max(1, int(sum(node.cores for node in nodes)) // config.workers)
    model = sum(file.stat().st_size for file in spec.bundle.path.rglob("*") if file.is_file())
    each = worker_memory(spec, model, threads=threads)
    shared = 2 * model if spec.on_ray else 0  # Ray hands the model, and what was compiled of it, to its workers.
    demand = Demand(config.workers, each + (PROCESS_MEMORY if spec.on_ray else 0), shared, remedy=REMEDY)
    for warning in check_workers(demand, nodes, oversubscribe=config.oversubscribe):
        on_note(warning)


def worker_memory(spec: JobSpec, model: int, *, threads: int) -> int:
    """Bytes that the model and the images under way take in one worker, beside the process itself.

    Args:
        model: Bytes of its files.
        threads: Of the worker; each decodes, and in some engines each runs the network.
    """
    settings = replace(spec.worker.settings, threads=threads)
    in_network = settings.batch * settings.streams
    waiting = 2 * in_network + 2 * settings.decoders
    return 2 * model + (waiting + _FEATURES * in_network) * 3 * settings.size**2 + settings.decoders * _PHOTO
