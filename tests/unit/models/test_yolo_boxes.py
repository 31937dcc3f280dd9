"""Candidates are chosen and suppressed as Ultralytics' validation does it."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou

from sightline.models.yolo_inference import YoloInference
from sightline.structures import Detections


def choose(output: Tensor, *, min_score: float = 0.001, max_detections: int = 300) -> Detections:
    return YoloInference(640, min_score=min_score, max_detections=max_detections).select(output.numpy())


def head(*rows: list[float]) -> Tensor:
    """One place a row: centre, sides, scores."""
    return torch.tensor(rows).T


def plain_choice(output: Tensor, threshold: float) -> list[tuple[float, int, tuple[float, ...]]]:
    """The same, one candidate after another."""
    candidates = []
    for x, y, width, height, *scores in output.T.tolist():
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        candidates += [(score, label, box) for label, score in enumerate(scores) if score >= threshold]
    kept: list[tuple[float, int, tuple[float, ...]]] = []
    for candidate in sorted(candidates, reverse=True):
        same = [other[2] for other in kept if other[1] == candidate[1]]
        if not same or box_iou(torch.tensor([candidate[2]]), torch.tensor(same)).max() <= 0.7:
            kept.append(candidate)
    return kept


@pytest.mark.parametrize("threshold", [0.001, 0.3, 0.9])
def test_it_is_what_the_plain_way_finds(threshold: float) -> None:
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(4, 200, generator=generator) * torch.tensor([[60.0], [60], [30], [30]]) + 10
    output = torch.cat([places, torch.rand(3, 200, generator=generator)])
    found, expected = choose(output, min_score=threshold, max_detections=1000), plain_choice(output, threshold)
    assert len(expected) > 10
    assert found.labels.tolist() == [label for _, label, _ in expected]
    np.testing.assert_allclose(found.scores, np.array([score for score, _, _ in expected]), rtol=1e-5)
    np.testing.assert_allclose(found.boxes, np.array([box for _, _, box in expected]), rtol=1e-5)


def test_a_place_may_be_of_several_classes() -> None:
    found = choose(head([50, 40, 20, 10, 0.9, 0.2, 0.0005]))
    assert found.labels.tolist() == [0, 1]
    assert found.boxes.tolist() == [[40, 35, 60, 45]] * 2


def test_only_boxes_of_the_same_class_suppress_each_other() -> None:
    found = choose(head([50, 50, 20, 20, 0.9, 0], [51, 50, 20, 20, 0.8, 0], [51, 50, 20, 20, 0, 0.7]))
    assert list(zip(found.scores.tolist(), found.labels.tolist(), strict=True)) == [
        (pytest.approx(0.9), 0),
        (pytest.approx(0.7), 1),
    ]


def test_the_best_are_reported_best_first() -> None:
    rows = [[100.0 * place, 50, 20, 20, 0.1 + place / 1000] for place in range(500)]
    found = choose(head(*rows))
    assert len(found.scores) == 300
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
    assert found.scores[0] == pytest.approx(0.599)


def test_of_too_many_candidates_the_surest_are_looked_at() -> None:
    scores = torch.linspace(0.01, 0.99, 5000)
    output = torch.stack([torch.arange(5000) * 100.0, *torch.full((3, 5000), 20.0), scores])
    assert choose(output, max_detections=5000).scores.min() == pytest.approx(scores[2000].item())


def test_nothing_above_the_threshold_is_nothing() -> None:
    found = choose(head([50, 50, 20, 20, 0.0001, 0]))
    assert (found.boxes.shape, found.scores.shape, found.labels.shape) == ((0, 4), (0,), (0,))


def test_half_precision_comes_back_single() -> None:
    raw = head([600, 50, 20, 20, 0.5]).half()[None]
    (found,) = YoloInference(640).detect(lambda name, images: (raw,), np.zeros((1, 3, 64, 64), np.uint8))
    assert found.boxes.dtype == np.float32
