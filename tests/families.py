"""Families that tests go over: of the YOLOs the smallest of each series, for the others differ by size alone."""

from typing import Any

import pytest

from sightline.models.factory import CLASSIFIERS, FAMILIES
from sightline.models.yolo_metadata import NAMES as YOLOS

TESTED = tuple(name for name in FAMILIES if name not in YOLOS or name.endswith("n"))
TORCHVISION = tuple(name for name in TESTED if name not in ("nano", *YOLOS, *CLASSIFIERS))
QUICK = ("nano", "resnet18")
"""Of these the tests run in `make test`; those of the others are slow."""


def trained_families(*, classify: bool) -> list[Any]:
    """Parameters of tests that train."""
    chosen = [name for name in TESTED if (name in CLASSIFIERS) is classify]
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in chosen]
