"""The canvas an image is put on, and the way back."""

import numpy as np
import pytest

from sightline.models.letterbox import Letterbox, boxes_to_original
from sightline.structures import Annotation, Boxes


def annotate(boxes: Boxes) -> Annotation:
    return Annotation(boxes, np.zeros(len(boxes), np.int32), np.zeros(len(boxes), np.bool_))


@pytest.mark.parametrize(
    ("fit", "shape", "canvas"),
    [
        (Letterbox(640), (640, 640), (640, 640)),
        (Letterbox(640), (100, 50), (640, 640)),
        (Letterbox(640, square=False), (1280, 500), (640, 256)),
        (Letterbox(640, square=False), (100, 50), (128, 64)),
        (Letterbox(640, square=False, upscale=True), (100, 50), (640, 320)),
        (Letterbox(100), (1000, 1000), (128, 128)),
        (Letterbox(64, square=False), (5000, 3), (64, 32)),
    ],
)
def test_canvas_holds_the_image(fit: Letterbox, shape: tuple[int, int], canvas: tuple[int, int]) -> None:
    pixels, _ = fit(np.zeros((*shape, 3), np.uint8), annotate(np.zeros((0, 4), np.float32)))
    assert pixels.shape == (*canvas, 3)
    assert fit.canvas(width=shape[1], height=shape[0]) == canvas[::-1]


@pytest.mark.parametrize("shape", [(480, 640), (333, 777), (50, 40), (640, 640)])
@pytest.mark.parametrize("fit", [Letterbox(320), Letterbox(320, square=False, upscale=True)])
def test_boxes_come_back(fit: Letterbox, shape: tuple[int, int]) -> None:
    height, width = shape
    boxes = np.array([[0, 0, width, height], [3.5, 7.25, 30, 41]], np.float32)
    _, moved = fit(np.zeros((height, width, 3), np.uint8), annotate(boxes))
    back = boxes_to_original(moved.boxes, fit, width=width, height=height)
    np.testing.assert_allclose(back, boxes.clip(0, [width, height, width, height]), atol=1e-3)


def test_boxes_stay_on_their_pixels() -> None:
    image = np.zeros((400, 200, 3), np.uint8)
    image[100:200, 40:80] = 255
    pixels, moved = Letterbox(200)(image, annotate(np.array([[40, 100, 80, 200]], np.float32)))
    x0, y0, x1, y1 = moved.boxes[0].astype(int)
    assert (pixels[y0 + 1 : y1 - 1, x0 + 1 : x1 - 1] == 255).all()
    assert (pixels[:200, :100] > 127).sum() == pytest.approx(3 * (y1 - y0) * (x1 - x0), rel=0.1)
    assert (pixels[:, 100:] == 114).all()


def test_an_image_that_fits_is_not_copied() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    assert Letterbox(64)(image, annotate(np.zeros((0, 4), np.float32)))[0] is image


@pytest.mark.parametrize("fields", [{"size": 0}, {"size": 64, "multiple": 0}])
def test_senseless_sizes_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Letterbox(**fields)
