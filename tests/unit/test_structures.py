"""The values that travel between the parts."""

import numpy as np
import pytest

from sightline.structures import Classification, Detections

CLASSES = ("cat", "dog")


def detections(count: int = 3) -> Detections:
    boxes = np.arange(4 * count, dtype=np.float32).reshape(-1, 4)
    return Detections(boxes, np.linspace(0.9, 0.1, count, dtype=np.float32), np.arange(count) % 2, classes=CLASSES)


@pytest.mark.parametrize(("boxes", "scores", "labels"), [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_columns_that_do_not_fit(boxes: int, scores: int, labels: int) -> None:
    with pytest.raises(ValueError, match="columns differ in length"):
        Detections(np.zeros((boxes, 4)), np.zeros(scores), np.zeros(labels, np.int32))


def test_names_and_rows() -> None:
    one = detections()
    assert one.names == ["cat", "dog", "cat"]
    assert list(one.rows())[1] == ("dog", 0.5, 4.0, 5.0, 6.0, 7.0)


def test_some_of_them() -> None:
    one = detections()
    assert len(one.at_least(0.5)) == 2
    assert one.at_least(0.5).classes == CLASSES
    assert one[one.labels == 0].names == ["cat", "cat"]
    assert one[[2, 0]].scores.tolist() == [one.scores[2], one.scores[0]]
    assert one[:0].boxes.shape == (0, 4)
    assert one[1].names == ["dog"]
    assert [found.names for found in one] == [["cat"], ["dog"], ["cat"]]


def test_a_class_as_a_box() -> None:
    one = Classification(1, "dog", 0.75, np.array([0.25, 0.75], np.float32), (80, 60))
    assert list(one.to_detections(CLASSES).rows()) == list(one.rows()) == [("dog", 0.75, 0.0, 0.0, 80.0, 60.0)]
