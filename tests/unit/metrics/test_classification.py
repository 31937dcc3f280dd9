"""Accuracy, rates and confusion of classifiers."""

import json
from typing import Any

import numpy as np
import pytest

from sightline.metrics.classification import ClassificationMetric
from sightline.metrics.rates import Rates

NAMES = ["a", "b", "c", "d", "e", "f", "g"]


def metric_of(images: list[tuple[int, Any]], names: list[str]) -> ClassificationMetric:
    metric = ClassificationMetric(names)
    for key, (label, scores) in enumerate(images):
        metric.update(key, label, scores)
    return metric


def test_by_hand() -> None:
    result = metric_of([(0, [0.9, 0.1]), (0, [0.2, 0.8]), (1, [0.3, 0.7]), (1, [0.0, 1.0])], ["cat", "dog"]).compute()
    assert result.accuracy == 3 / 4
    assert result.confusion.tolist() == [[1, 1], [0, 2]]
    assert result.per_class[0].rates == Rates(precision=1.0, recall=0.5, f1=2 / 3)
    assert result.per_class[1].rates == Rates(precision=2 / 3, recall=1.0, f1=4 / 5)
    assert result.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert [one.num_true for one in result.per_class] == [2, 2]
    assert (result.top5, result.num_images) == (1.0, 4)


@pytest.mark.parametrize(
    ("label", "scores", "correct", "in_top"),
    [
        (0, [7, 6, 5, 4, 3, 2, 1], True, True),
        (4, [7, 6, 5, 4, 3, 2, 1], False, True),
        (5, [7, 6, 5, 4, 3, 2, 1], False, False),
        (0, [1, 1, 1, 1, 1, 1, 1], True, True),
        (4, [1, 1, 1, 1, 1, 1, 1], False, True),
        (5, [1, 1, 1, 1, 1, 1, 1], False, False),
        (6, [0, 0, 0, 0, 0, 0, 1], True, True),
    ],
)
def test_top_five_breaks_ties_as_the_answer_does(label: int, scores: list[int], correct: bool, in_top: bool) -> None:
    result = metric_of([(label, np.array(scores, np.float32))], NAMES).compute()
    assert (result.accuracy == 1, result.top5 == 1) == (correct, in_top)


def test_random_against_plain_counting() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 7, 300), rng.random((300, 7))
    result = metric_of([(int(label), row) for label, row in zip(labels, scores, strict=True)], NAMES).compute()
    answers = scores.argmax(axis=1)
    assert result.accuracy == np.mean(answers == labels)
    assert result.top5 == np.mean([label in np.argsort(-row)[:5] for label, row in zip(labels, scores, strict=True)])
    for k, one in enumerate(result.per_class):
        assert one.rates.recall == pytest.approx(np.mean(answers[labels == k] == k))
        assert one.rates.precision == pytest.approx(np.mean(labels[answers == k] == k))


def test_nothing_seen_and_classes_that_do_not_occur() -> None:
    nothing = json.loads(metric_of([], ["a"]).compute().to_json())
    assert (nothing["accuracy"], nothing["macro_f1"], nothing["confusion"]) == (None, None, [[0]])
    result = metric_of([(0, [1, 0, 0])], ["a", "b", "c"]).compute()
    assert result.macro_f1 == 1.0
    assert np.isnan(result.per_class[1].rates.recall)


def test_an_image_given_twice_is_refused() -> None:
    metric = metric_of([(0, [1, 0])], ["a", "b"])
    metric.update(0, 1, [1, 0])
    with pytest.raises(ValueError, match="image 0 was given 2 times"):
        metric.compute()


@pytest.mark.parametrize(("label", "scores"), [(2, [0, 1]), (-1, [0, 1]), (0, [1]), (0, [[0, 1]])])
def test_what_does_not_fit(label: int, scores: Any) -> None:
    with pytest.raises(ValueError, match="image 5 has label"):
        ClassificationMetric(["a", "b"]).update(5, label, scores)


def test_no_classes() -> None:
    with pytest.raises(ValueError, match="no classes"):
        ClassificationMetric([])
