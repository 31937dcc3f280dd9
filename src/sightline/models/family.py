"""What is known of a model family beside its code: where that is, where it has been trained before, how it trains.

Nothing here needs torch; the network of a family is imported when it is made.
"""

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sightline.models.detector import Detector
    from sightline.models.inference import InferenceModel


@dataclass(frozen=True)
class Recipe:
    """Settings of training that suit a family; each is taken where the user gave none.

    Attributes:
        lr: Peak learning rate, at a batch of 4.
        batchnorm: "frozen" where statistics of other data are better than those of a small batch.
    """

    optimizer: Literal["adamw", "sgd"]
    lr: float
    weight_decay: float
    batchnorm: Literal["sync", "frozen"] = "sync"


@dataclass(frozen=True)
class Family:
    """A line of the factory. Code is named as `module:attribute`, and imported when it is used.

    Attributes:
        network: Builds a model with fresh weights from the number of classes and the size.
        options: Further arguments of that.
        inference: The code around the graphs, made from the size; empty where it is part of the network.
        size: Usual side of the square that images are fitted into.
        depthwise: Whether its time goes into depthwise convolutions, which gain nothing from fewer bits on a CPU.
        published: Its published weights, by name: "coco" for the whole detector, "imagenet" for its backbone.
        scratch: How it learns from fresh weights.
        tuned: How it learns from weights that were trained before.
        licence: Of the code that defines it.
        extras: The extras of Sightline that it needs.
    """

    network: str
    options: dict[str, Any] = field(default_factory=dict)
    inference: str = ""
    task: Literal["detection", "classification"] = "detection"
    size: int = 640
    depthwise: bool = False
    published: dict[str, str] = field(default_factory=dict)
    scratch: Recipe = Recipe("adamw", lr=5e-4, weight_decay=0.05)
    tuned: Recipe = Recipe("sgd", lr=0.005, weight_decay=5e-4, batchnorm="frozen")
    licence: str = "BSD-3-Clause"
    extras: tuple[str, ...] = ()

    def make(self, num_classes: int, size: int) -> "Detector":
        """A model with fresh weights."""
        model: Detector = _named(self.network)(num_classes, size=size, **self.options)
        return model

    def make_inference(self, size: int) -> "InferenceModel | None":
        """The code around the graphs, without torch; None where it is part of the network."""
        return _named(self.inference)(size) if self.inference else None

    @cached_property
    def urls(self) -> dict[str, str]:
        """Where the published weights are."""
        return {name: _named(entry).url for name, entry in self.published.items()}


def _named(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return attrgetter(attribute)(import_module(module))
