"""Precision, recall and F1 at a score, and the score where F1 is best."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from scenes import Scene, drawn_scenes, found, metric_of, random_scene, truth

from sightline.metrics.rates import Rates, rates

A, B, C = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0], [100.0, 0.0, 110.0, 10.0]
EMPTY = [200.0, 200.0, 210.0, 210.0]

# Three cats and a dog; going down the scores: right, wrong, right, wrong.
HAND: Scene = [
    (truth([A, B, C], [0, 0, 1]), found([A, EMPTY, B], [0, 0, 0], [0.9, 0.8, 0.7])),
    (truth([A], [0]), found([EMPTY], [1], [0.6])),
]


def test_by_hand() -> None:
    result = metric_of(HAND, 2).compute()
    # Kept 1: 2*1/(1+4) = 0.4; kept 2: 2/6; kept 3: 4/7; kept 4: 4/8.
    assert result.score == 0.7
    assert result.rates == Rates(precision=2 / 3, recall=2 / 4, f1=4 / 7)
    cat, dog = (one.rates for one in result.per_class)
    assert cat == Rates(precision=2 / 3, recall=2 / 3, f1=4 / 6)
    assert (np.isnan(dog.precision), dog.recall, dog.f1) == (True, 0.0, 0.0)
    assert [one.num_true for one in result.per_class] == [3, 1]


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.95, (np.nan, 0.0, 0.0)),
        (0.9, (1.0, 1 / 4, 2 / 5)),
        (0.75, (1 / 2, 1 / 4, 2 / 6)),
        (0.0, (2 / 4, 2 / 4, 4 / 8)),
    ],
)
def test_at_a_given_score(score: float, expected: tuple[float, float, float]) -> None:
    result = metric_of(HAND, 2, score_threshold=score).compute()
    assert result.score == score
    assert [result.rates.precision, result.rates.recall, result.rates.f1] == pytest.approx(expected, nan_ok=True)


def test_boxes_of_equal_score_are_kept_together() -> None:
    scene: Scene = [(truth([A], [0]), found([A, EMPTY, EMPTY], [0, 0, 0], [0.5, 0.5, 0.4]))]
    result = metric_of(scene, 1).compute()
    assert (result.score, result.rates) == (0.5, Rates(precision=0.5, recall=1.0, f1=2 / 3))


def test_of_equally_good_scores_the_highest() -> None:
    scene: Scene = [(truth([A, B], [0, 0]), found([A, EMPTY, EMPTY, EMPTY, B], [0] * 5, [0.9, 0.8, 0.7, 0.6, 0.5]))]
    # Kept 1: 2/3; kept 5: 4/7, and with one wrong one fewer 4/6, the same.
    equal: Scene = [(scene[0][0], found([A, EMPTY, EMPTY, B], [0] * 4, [0.9, 0.8, 0.7, 0.5]))]
    assert metric_of(scene, 1).compute().score == 0.9
    assert metric_of(equal, 1).compute().score == 0.9
    assert metric_of(equal, 1).compute().rates.f1 == 2 / 3


def test_ignored_boxes_count_nowhere() -> None:
    scene: Scene = [(truth([A, B], [0, 0], [False, True]), found([A, B, B], [0, 0, 0], [0.5, 0.9, 0.8]))]
    assert metric_of(scene, 1).compute().rates == Rates(1.0, 1.0, 1.0)


def test_boxes_on_a_crowd_do_not_move_the_best_score() -> None:
    boxes = found([A, B, B, B, B, B, C], [0] * 7, [0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.7])
    result = metric_of([(truth([A, B, C], [0, 0, 0], [False, True, False]), boxes)], 1).compute()
    assert (result.score, result.rates) == (0.7, Rates(1.0, 1.0, 1.0))


@pytest.mark.parametrize("iou", [0.33, 0.5])
def test_iou_of_choice(iou: float) -> None:
    half = [0.0, 0.0, 10.0, 4.0]
    result = metric_of([(truth([A], [0]), found([half], [0], [0.5]))], 1, operating_iou=iou).compute()
    assert result.iou == iou
    assert result.rates.recall == (1.0 if iou < 0.4 else 0.0)


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ([(truth([A], [0]), found([], [], []))], (np.nan, np.nan, 0.0, 0.0)),
        ([(truth([], []), found([A], [0], [0.5]))], (0.5, 0.0, np.nan, 0.0)),
        ([], (np.nan, np.nan, np.nan, np.nan)),
        ([(truth([A], [0]), found([EMPTY, EMPTY], [0, 0], [0.5, 0.7]))], (0.7, 0.0, 0.0, 0.0)),
    ],
)
def test_nothing_to_find_or_nothing_found(scene: Scene, expected: tuple[float, ...]) -> None:
    result = metric_of(scene, 1).compute()
    ours = [result.score, result.rates.precision, result.rates.recall, result.rates.f1]
    assert ours == pytest.approx(expected, nan_ok=True)


def assert_best_of_all_scores(scene: Scene, num_classes: int, iou: float) -> None:
    result = metric_of(scene, num_classes, operating_iou=iou).compute()
    scores = sorted({float(score) for _, boxes in scene for score in boxes.scores}, reverse=True)
    counts = {score: oracle.counts(scene, num_classes, iou=iou, score=score) for score in scores}
    best = max(
        (rates(right=r, found=f, true=t).f1 for r, f, t in (c.sum(axis=1).tolist() for c in counts.values()) if f),
        default=float("nan"),
    )
    if np.isnan(result.score):
        assert np.isnan(best)
        return
    assert result.rates.f1 == pytest.approx(best, abs=1e-12)
    right, boxes, true = counts[result.score]
    for label, one in enumerate(result.per_class):
        expected = rates(right=int(right[label]), found=int(boxes[label]), true=int(true[label]))
        assert str(one.rates) == str(expected)  # NaN equals NaN this way.


@settings(max_examples=40, deadline=None)
@given(drawn_scenes)
def test_best_score_of_drawn_scenes(scene: Scene) -> None:
    assert_best_of_all_scores(scene, 2, 0.5)


@pytest.mark.parametrize("iou", [0.33, 0.5, 0.75])
@pytest.mark.parametrize("seed", range(3))
def test_best_score_of_random_scenes(seed: int, iou: float) -> None:
    assert_best_of_all_scores(random_scene(seed, images=5, scores=12, crowd=0.2), 3, iou)
