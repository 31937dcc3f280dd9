"""What is known of a model family beside its code: how it is made, where it has been trained before, how it trains."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sightline.models.detector import Detector


@dataclass(frozen=True)
class Recipe:
    """Settings of training that suit a family; each is taken where the user gave none.

    Attributes:
        lr: Highest learning rate, at a batch of 4.
        batchnorm: "frozen" where statistics of other data are better than those of a small batch.
    """

    optimizer: Literal["adamw", "sgd"]
    lr: float
    weight_decay: float
    batchnorm: Literal["sync", "frozen"] = "sync"


@dataclass(frozen=True)
class Family:
    """A line of the factory.

    Attributes:
        make: Builds a model with fresh weights from the number of classes and the size.
        size: Usual side of the square that images are fitted into.
        depthwise: Whether its time goes into depthwise convolutions, which gain nothing from fewer bits on a CPU.
        urls: Where its published weights are, by name: "coco" for the whole detector, "imagenet" for its backbone.
        scratch: How it learns from fresh weights.
        tuned: How it learns from weights that were trained before.
        licence: Of the code that defines it.
    """

    make: Callable[[int, int], Detector]
    task: Literal["detection", "classification"] = "detection"
    size: int = 640
    depthwise: bool = False
    urls: dict[str, str] = field(default_factory=dict)
    scratch: Recipe = Recipe("adamw", lr=5e-4, weight_decay=0.05)
    tuned: Recipe = Recipe("sgd", lr=0.005, weight_decay=5e-4, batchnorm="frozen")
    licence: str = "BSD-3-Clause"
