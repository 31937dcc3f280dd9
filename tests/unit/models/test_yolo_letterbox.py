"""An image in the middle of its canvas, and the way back."""

from dataclasses import replace

import numpy as np
import pytest

from sightline.models.info import Preprocessing
from sightline.models.letterbox import Letterbox, boxes_to_original
from sightline.structures import Annotation

FIT = Letterbox(64, upscale=True, centred=True)


@pytest.mark.parametrize("fit", [FIT, replace(FIT, square=False), replace(FIT, upscale=False)])
@pytest.mark.parametrize("shape", [(48, 64), (33, 77), (64, 20), (10, 9), (64, 64)])
def test_boxes_come_back(fit: Letterbox, shape: tuple[int, int]) -> None:
    height, width = shape
    boxes = np.array([[0, 0, width, height], [1, 2, width / 2, height / 2]], np.float32)
    _, moved = fit(np.zeros((*shape, 3), np.uint8), Annotation(boxes, np.zeros(2, np.int32), np.zeros(2, np.bool_)))
    np.testing.assert_allclose(boxes_to_original(moved.boxes, fit, width=width, height=height), boxes, atol=1e-3)


@pytest.mark.parametrize(("fit", "canvas", "top"), [(FIT, (64, 64), 22), (replace(FIT, square=False), (32, 64), 6)])
def test_the_gray_is_on_both_sides(fit: Letterbox, canvas: tuple[int, int], top: int) -> None:
    pixels = fit.place(np.zeros((20, 64, 3), np.uint8), width=64, height=20)
    assert pixels.shape == (*canvas, 3)
    assert np.unique(np.flatnonzero((pixels == 0).all(axis=(1, 2)))).tolist() == list(range(top, top + 20))
    assert (pixels[:top] == 114).all()
    assert (pixels[top + 20 :] == 114).all()


def test_the_corner_stays_the_default_and_is_what_older_descriptions_mean() -> None:
    assert Letterbox(64).offset(width=64, height=20) == (0, 0)
    written = Preprocessing.of(Letterbox(64)).model_dump()
    assert written.pop("centred") is False
    assert Preprocessing.model_validate(written) == Preprocessing.of(Letterbox(64))
    assert Preprocessing.of(FIT).centred
