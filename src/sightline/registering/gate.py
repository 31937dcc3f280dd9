"""The gate before an alias: no model takes it from one that is better on the same images."""

from collections.abc import Callable
from dataclasses import dataclass

from sightline.errors import GateError
from sightline.registering.scoring import ModelComparison, Scored
from sightline.tracking.registry import ModelVersion, Registry

Compare = Callable[[ModelVersion, ModelVersion], ModelComparison]
"""Scores the version that would get an alias and the one that has it, in this order."""


@dataclass(frozen=True)
class Promotion:
    """What came of promoting a version.

    Attributes:
        before: The version that had the alias.
        compared: Both of them on the same images; None if nobody had the alias, or nothing was compared.
    """

    version: ModelVersion
    alias: str
    before: ModelVersion | None
    compared: ModelComparison | None


def promote(
    registry: Registry, version: ModelVersion, alias: str, *, compare: Compare | None, force: bool = False
) -> Promotion:
    """Give an alias to a version, unless the one that has it is better.

    Args:
        compare: May be left out with `force`; then nothing is scored.

    Raises:
        GateError: It is worse, cannot be compared, or another promotion moved the alias meanwhile.
    """
    before = registry.holder(version.name, alias)
    compared = None
    if before and before.version != version.version and compare:
        compared = compare(version, before)
        if not force:
            _refuse_worse(compared, alias)
    if before is None or before.version != version.version:
        _refuse_moved(registry, version.name, alias, before)
        registry.set_alias(version, alias)
    return Promotion(registry.by_number(version.name, version.version), alias, before, compared)


def _refuse_moved(registry: Registry, name: str, alias: str, before: ModelVersion | None) -> None:
    """Raise if the alias is no longer where it was when scoring began.

    MLflow has no compare-and-set for aliases, so two promotions within the same few milliseconds can still overlap.
    """
    now = registry.holder(name, alias)
    was, is_now = (holder.version if holder else "no version" for holder in (before, now))
    if was != is_now:
        raise GateError(
            f"another promotion moved the alias {alias!r} of {name!r} from {was} to {is_now} while this one was "
            "scoring. Nothing was changed; run the command again to compare with the present holder"
        )


def _refuse_worse(compared: ModelComparison, alias: str) -> None:
    new, old = compared.models
    where = f"on {compared.dataset!r}, split {compared.split} ({compared.num_images:,} images)"
    if new.score is None or old.score is None:
        raise GateError(
            f"{new.label} and {old.label} cannot be compared {where}: there is nothing to find in it. Give another "
            "--dataset or --split, or --force"
        )
    if new.score < old.score:
        raise GateError(
            f"{new.label} is worse {where} than {old.label}, which is {alias!r}: {_figures(new)} against "
            f"{_figures(old)}. The alias stays where it is; --force moves it all the same"
        )


def _figures(scored: Scored) -> str:
    names = {"map": "mAP", "map50": "mAP50", "f1": "F1", "accuracy": "accuracy"}
    shown = [(names[name], value) for name, value in scored.figures.items() if name in names and value is not None]
    return ", ".join(f"{name} {value:.4f}" for name, value in shown)
