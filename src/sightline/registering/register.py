"""A bundle put into the registry, with the facts that a list of models shows."""

from sightline.models.bundle import Bundle
from sightline.models.factory import extras_of
from sightline.tracking.registry import ModelVersion, Registry

_SHOWN = ("score", "map", "map50", "accuracy")


def register_bundle(registry: Registry, name: str, bundle: Bundle) -> ModelVersion:
    """Keep a bundle as the next version of a model."""
    info = bundle.info
    facts = {"model": info.model, "task": info.task, "size": str(info.size), "classes": str(len(info.classes))}
    if info.dataset:
        facts |= {"dataset": info.dataset.name, "dataset_hash": info.dataset.content_hash}
    if info.run:
        facts["run"] = info.run.name
    facts |= {figure: f"{info.metrics[figure]:.6g}" for figure in _SHOWN if figure in info.metrics}
    run_id = info.run.run_id if info.run else None
    return registry.register(
        name, bundle.path, hash=bundle.hash, run_id=run_id, facts=facts, extras=extras_of(info.model)
    )
