"""Who is taken for whom."""

from typing import Any

import numpy as np
import oracle
import pytest
from scenes import Scene, found, metric_of, random_scene, truth

A, B = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
NEAR_A = [0.0, 0.0, 10.0, 9.0]
EMPTY = [200.0, 200.0, 210.0, 210.0]


@pytest.mark.parametrize(
    ("true", "boxes", "expected"),
    [
        # Rows are true cat, dog, background; columns are found cat, dog, background.
        (([A], [0]), ([A], [0], [0.9]), [[1, 0, 0], [0, 0, 0], [0, 0, 0]]),
        (([A], [0]), ([A], [1], [0.9]), [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        (([A], [0]), ([EMPTY], [1], [0.9]), [[0, 0, 1], [0, 0, 0], [0, 1, 0]]),
        (([A], [0]), ([A], [0], [0.2]), [[0, 0, 1], [0, 0, 0], [0, 0, 0]]),
        # The own class goes first, whatever the scores; the other box then lies on what is taken.
        (([A], [0]), ([A, NEAR_A], [1, 0], [0.9, 0.6]), [[1, 0, 0], [0, 0, 0], [0, 1, 0]]),
        # A box of the own class that is below the score does not stand in the way.
        (([A], [0]), ([A, NEAR_A], [1, 0], [0.9, 0.4]), [[0, 1, 0], [0, 0, 0], [0, 0, 0]]),
        # One true box is confused once.
        (([A], [0]), ([A, NEAR_A], [1, 1], [0.9, 0.6]), [[0, 1, 0], [0, 0, 0], [0, 1, 0]]),
        (([A, B], [0, 1]), ([A, B], [1, 0], [0.9, 0.6]), [[0, 1, 0], [1, 0, 0], [0, 0, 0]]),
        # Ignored boxes, and what lies on them, are left out.
        (([A, B], [0, 0], [True, False]), ([A, A], [0, 0], [0.9, 0.8]), [[0, 0, 1], [0, 0, 0], [0, 0, 0]]),
    ],
)
def test_by_hand(true: Any, boxes: Any, expected: list[list[int]]) -> None:
    scene: Scene = [(truth(*true), found(*boxes))]
    assert metric_of(scene, 2, score_threshold=0.5).compute().confusion.tolist() == expected


@pytest.mark.parametrize("iou", [0.33, 0.5, 0.8])
@pytest.mark.parametrize("score", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("options", [{}, {"scores": 4}, {"grid": 16.0, "scores": 6, "size": (16.0, 130.0)}])
def test_against_plain_loops(options: dict[str, Any], score: float, iou: float) -> None:
    for seed in range(4):
        scene = random_scene(seed, crowd=0.0, max_found=30, **options)
        result = metric_of(scene, 3, operating_iou=iou, score_threshold=score).compute()
        assert np.array_equal(result.confusion, oracle.confusion(scene, 3, iou=iou, score=score))


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_the_counts_of_the_rates(seed: int) -> None:
    scene = random_scene(seed, crowd=0.2, max_found=40)
    result = metric_of(scene, 3).compute()
    right, boxes, true = oracle.counts(scene, 3, iou=result.iou, score=result.score)
    assert np.array_equal(np.diagonal(result.confusion)[:3], right)
    assert np.array_equal(result.confusion.sum(axis=0)[:3], boxes)
    assert np.array_equal(result.confusion.sum(axis=1)[:3], true)
