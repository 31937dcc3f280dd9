"""Which predictions answer for which object, and what regions to ignore do."""

import pytest
import torch
from torch import Tensor

from sightline.models.detector import Target
from sightline.models.nano_assign import Assignment, assign
from sightline.models.nano_boxes import decode_boxes, flatten_map, grid_points
from sightline.models.nano_loss import nano_loss

STRIDE = 8
SIDE = 16  # Cells; 128 pixels.


def points() -> Tensor:
    return grid_points(SIDE, SIDE, stride=STRIDE, like=torch.zeros(1))


def predicted_boxes() -> Tensor:
    """Boxes of 32 x 32 pixels about every point."""
    raw = torch.zeros(1, SIDE * SIDE, 4)
    raw[..., 2:] = torch.tensor(4.0).log()
    return decode_boxes(raw, points(), stride=STRIDE)[0]


def make_target(boxes: list[list[float]], *, ignore: list[bool] | None = None) -> Target:
    flags = ignore or [False] * len(boxes)
    labels = torch.arange(len(boxes)) % 2
    xyxy = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Target(xyxy, labels, torch.tensor(flags, dtype=torch.bool))


def assigned(target: Target) -> Assignment:
    return assign(points(), predicted_boxes(), torch.full((SIDE * SIDE, 2), 0.1), target, stride=STRIDE)


def test_points_are_the_centres_of_cells_in_the_order_of_the_map() -> None:
    grid = grid_points(2, 3, stride=8, like=torch.zeros(1))
    assert grid.tolist() == [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12]]
    raw = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert flatten_map(raw)[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_huge_predictions_do_not_overflow() -> None:
    boxes = decode_boxes(torch.full((1, 1, 4), 1e4), torch.zeros(1, 2), stride=STRIDE)
    assert torch.isfinite(boxes).all()


@pytest.mark.parametrize(
    "box",
    [[40, 40, 72, 72], [50, 50, 52, 53], [0, 0, 3, 3], [0, 0, 128, 128], [120, 3, 128, 125]],
    ids=["typical", "tiny", "corner", "huge", "edge"],
)
def test_every_object_gets_points_near_its_centre(box: list[float]) -> None:
    found = assigned(make_target([box]))
    centre = torch.tensor([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
    assert len(found.positive) >= 1
    assert ((points()[found.positive] - centre).abs() < 2 * STRIDE).all()
    assert (found.objects == 0).all()
    assert (found.quality >= 0).all()
    assert (found.quality <= 1).all()


def test_the_best_point_is_to_score_its_overlap() -> None:
    found = assigned(make_target([[44, 44, 76, 76]]))
    best = found.quality.argmax()
    assert points()[found.positive[best]].tolist() == [60, 60]
    assert found.quality[best].item() == pytest.approx(1.0)


def test_a_point_answers_for_one_object_only() -> None:
    found = assigned(make_target([[40, 40, 72, 72], [44, 44, 76, 76]]))
    assert len(found.positive) == len(found.positive.unique())
    assert set(found.objects.tolist()) == {0, 1}


def test_objects_are_counted_among_all_targets() -> None:
    found = assigned(make_target([[0, 0, 30, 30], [80, 80, 110, 110]], ignore=[True, False]))
    assert set(found.objects.tolist()) == {1}


def test_no_objects_no_positives() -> None:
    found = assigned(make_target([]))
    assert len(found.positive) == len(found.objects) == len(found.quality) == 0
    assert found.counted.all()


def test_regions_to_ignore_get_no_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, SIDE * SIDE, 3, requires_grad=True)
    boxes = predicted_boxes()[None].clone().requires_grad_()
    target = make_target([[32, 32, 80, 80], [40, 40, 60, 60]], ignore=[True, False])
    sum(term.total for term in nano_loss(logits, boxes, points(), [target], stride=STRIDE)).backward()
    inside = ((points() >= 32) & (points() < 80)).all(1)
    assert inside.sum() == 36
    assert (logits.grad[0, inside] == 0).all()
    assert (boxes.grad[0, inside] == 0).all()
    assert (logits.grad[0, ~inside, 0] != 0).all()
