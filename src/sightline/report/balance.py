"""Findings about classes and splits: what training would never, or hardly ever, see."""

from sightline.data.schema import SplitInfo
from sightline.report.finding import Finding

TRAIN = "train"
FEW_IMAGES = 10


def balance_findings(classes: tuple[str, ...], splits: dict[str, SplitInfo]) -> list[Finding]:
    """Classes without, or with few, training images; classes that never occur; no training split at all."""
    seen = {name for split in splits.values() for name in split.images_per_class}
    never = tuple(name for name in classes if name not in seen)
    found = [_never(never)] if never else []
    if TRAIN not in splits:
        return [*found, _no_training()]
    training = splits[TRAIN].images_per_class
    untrained = tuple(name for name in classes if name in seen and name not in training)
    few = tuple(sorted((name for name in training if training[name] < FEW_IMAGES), key=lambda name: training[name]))
    if untrained:
        found.append(_untrained(untrained))
    if few:
        found.append(_few(few))
    return found


def _never(names: tuple[str, ...]) -> Finding:
    return Finding(
        kind="classes that never occur",
        severity="note",
        count=len(names),
        unit="classes",
        advice="They are in the list of classes, but no image shows one. The detector cannot learn them.",
        names=names,
    )


def _no_training() -> Finding:
    return Finding(
        kind="no training split",
        severity="note",
        count=0,
        unit="images",
        advice=f"There is no split named {TRAIN!r}: good for testing a model; to train one, ingest with "
        "--split train=0.8,val=0.2.",
    )


def _untrained(names: tuple[str, ...]) -> Finding:
    return Finding(
        kind="classes without training images",
        severity="problem",
        count=len(names),
        unit="classes",
        advice="Other splits show them, the training split does not. Ingest with --stratify, or bring more images.",
        names=names,
    )


def _few(names: tuple[str, ...]) -> Finding:
    return Finding(
        kind="classes with few training images",
        severity="warning",
        count=len(names),
        unit="classes",
        advice=f"Fewer than {FEW_IMAGES} training images each: expect low scores until there are more.",
        names=names,
    )
