"""The metric of image classifiers: accuracy, rates of each class and confusion, from any number of workers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sightline.metrics.columns import State, refuse_repeated
from sightline.metrics.confusion import Confusion
from sightline.metrics.ragged import Indices
from sightline.metrics.rates import Rates, rates_of_classes
from sightline.metrics.result import to_json

TOP = 5


@dataclass(frozen=True, slots=True)
class ClassRates:
    """The figures of one class.

    Attributes:
        name: Name of the class.
        num_true: Images of this class.
        rates: Precision, recall and F1.
    """

    name: str
    num_true: int
    rates: Rates


@dataclass(frozen=True, slots=True, eq=False)
class ClassificationResult:
    """The figures of a classifier, from 0 to 1; NaN where there was nothing to divide by.

    Attributes:
        accuracy: Images whose class has the highest score.
        top5: Images whose class is among the five highest scores; 1 with five classes or fewer.
        macro_f1: The mean F1 of the classes that occur or were given as an answer.
        per_class: One for each class, in the order of the classes.
        confusion: True classes x answers.
        num_images: Images seen.
    """

    accuracy: float
    top5: float
    macro_f1: float
    per_class: tuple[ClassRates, ...]
    confusion: Confusion
    num_images: int

    def to_json(self) -> str:
        """The same as JSON; NaN becomes null."""
        return to_json(self)


class ClassificationMetric:
    """Accuracy and the like, for images that come in any order and on any worker.

    Args:
        classes: Names of the classes, which labels are indices into.

    Example:
        >>> metric = ClassificationMetric(["cat", "dog"])
        >>> metric.update(0, 1, [0.2, 0.8])
        >>> metric.compute().accuracy
        1.0
    """

    def __init__(self, classes: Sequence[str]) -> None:
        if not len(classes):
            raise ValueError("no classes; expected at least one")
        self.classes = tuple(classes)
        self._rows: list[tuple[int, int, int, int]] = []
        self._states: list[State] = []

    def update(self, image_key: int, label: int, scores: ArrayLike) -> None:
        """Take one image.

        Args:
            image_key: The image's place in the whole dataset; each may come once.
            label: Its class.
            scores: One for each class, higher is likelier; of equals the first class is the answer.

        Raises:
            ValueError: The label is not one of the classes, or there is not one score for each.
        """
        values = np.asarray(scores)
        if values.shape != (len(self.classes),) or not 0 <= label < len(self.classes):
            raise ValueError(
                f"image {image_key} has label {label} and scores of shape {values.shape}; "
                f"expected a label below {len(self.classes)} and as many scores"
            )
        before = np.count_nonzero(values > values[label]) + np.count_nonzero(values[:label] == values[label])
        self._rows.append((image_key, label, int(values.argmax()), int(before)))

    def state(self) -> State:
        """Everything seen so far, as arrays that can be sent to another worker."""
        own = np.array(self._rows, np.int64).reshape(-1, 4)
        rows = np.concatenate([own, *(_table(state) for state in self._states)])
        return dict(zip(("keys", "labels", "answers", "places"), rows.T.copy(), strict=True))

    def merge(self, states: Iterable[State]) -> None:
        """Take what other metrics have seen."""
        self._states.extend(states)

    def compute(self) -> ClassificationResult:
        """The figures of all images seen.

        Raises:
            ValueError: An image was given more than once.
        """
        state = self.state()
        refuse_repeated(np.sort(state["keys"]))
        confusion = np.zeros((len(self.classes),) * 2, np.int64)
        np.add.at(confusion, (state["labels"], state["answers"]), 1)
        per_class = self._per_class(confusion)
        return ClassificationResult(
            accuracy=_share(state["answers"] == state["labels"]),
            top5=_share(state["places"] < TOP),
            macro_f1=_mean([one.rates.f1 for one in per_class if not np.isnan(one.rates.f1)]),
            per_class=per_class,
            confusion=confusion,
            num_images=len(state["keys"]),
        )

    def _per_class(self, confusion: Confusion) -> tuple[ClassRates, ...]:
        found, true = confusion.sum(axis=0), confusion.sum(axis=1)
        found_rates = rates_of_classes(right=np.diagonal(confusion), found=found, true=true)
        rows = zip(self.classes, true.tolist(), found_rates, strict=True)
        return tuple(ClassRates(*row) for row in rows)


def _table(state: State) -> Indices:
    return np.stack([state[name] for name in ("keys", "labels", "answers", "places")], axis=1)


def _share(hits: NDArray[Any]) -> float:
    return int(np.count_nonzero(hits)) / len(hits) if len(hits) else float("nan")


def _mean(figures: Sequence[float]) -> float:
    return float(np.mean(figures)) if figures else float("nan")
