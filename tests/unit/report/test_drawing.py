import numpy as np
import pytest
from PIL import Image

from sightline.report.colors import color_of
from sightline.report.drawing import draw_boxes

GRAY = (90, 90, 90)


def canvas(width: int = 200, height: int = 150) -> np.ndarray:
    return np.full((height, width, 3), GRAY, np.uint8)


def draw(
    image: np.ndarray, box: tuple[float, ...], *, label: int = 0, name: str = "cat", **options: object
) -> np.ndarray:
    boxes, labels = np.array([box], np.float32), np.array([label], np.int32)
    return np.asarray(draw_boxes(image, boxes, labels, classes=["?"] * label + [name], **options))  # type: ignore[arg-type]


def painted(pixels: np.ndarray) -> tuple[int, int, int, int]:
    """The part of the picture that was changed."""
    rows, columns = np.nonzero((pixels != GRAY).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


@pytest.mark.parametrize("label", [0, 3, 40])
def test_the_edges_have_the_color_of_the_class(label: int) -> None:
    pixels = draw(canvas(), (40, 50, 120, 130), label=label, names=False)
    for x, y in [(40, 90), (119, 90), (80, 50), (80, 129)]:
        assert tuple(pixels[y, x]) == color_of(label)
    assert tuple(pixels[90, 80]) == GRAY
    assert painted(pixels) == (40, 50, 120, 130)


def test_the_given_image_is_left_alone() -> None:
    image = Image.fromarray(canvas())
    before = image.tobytes()
    drawn = draw_boxes(image, np.array([[10, 10, 50, 50]], np.float32), np.array([0], np.int32), classes=["cat"])
    assert image.tobytes() == before
    assert drawn.tobytes() != before


def test_a_name_stands_above_its_box() -> None:
    x0, y0, _, y1 = painted(draw(canvas(), (40, 50, 120, 130)))
    assert (x0, y1) == (40, 130)
    assert y0 < 50


@pytest.mark.parametrize("box", [(0, 0, 200, 150), (150, 0, 200, 20), (190, 140, 200, 150), (-20, -20, 400, 400)])
def test_names_stay_inside_the_picture(box: tuple[float, ...]) -> None:
    pixels = draw(canvas(), box, name="a rather long name", scores=np.array([0.5], np.float32))
    # A label cut off by the edge would leave less of its colour than one that lies free.
    free = draw(canvas(), (20, 60, 22, 62), name="a rather long name", scores=np.array([0.5], np.float32))
    color = color_of(0)
    assert (pixels == color).all(axis=2).sum() >= 0.9 * (free == color).all(axis=2).sum()


def test_names_grow_with_the_image() -> None:
    def label_height(width: int, height: int) -> int:
        box = (width * 0.4, height * 0.5, width * 0.6, height * 0.8)
        return round(box[1]) - painted(draw(canvas(width, height), box))[1]

    assert label_height(2400, 1800) > 3 * label_height(240, 180)


@pytest.mark.parametrize("name", ["x" * 300, "日本語", "a\nb\x1b[31m", "", "naïve größe", "🙂"])
@pytest.mark.parametrize("size", [(1, 1), (30, 4), (400, 300)])
def test_any_name_can_be_drawn_on_any_image(name: str, size: tuple[int, int]) -> None:
    pixels = draw(canvas(*size), (0, 0, 1, 1), name=name)
    assert pixels.shape == (size[1], size[0], 3)


def test_labels_do_not_cover_each_other_where_there_is_room() -> None:
    boxes = np.array([[50, 60, 110, 120], [52, 62, 108, 118]], np.float32)
    one = np.asarray(draw_boxes(canvas(), boxes, np.array([0, 0], np.int32), classes=["cat"]))
    assert painted(one)[1] < 60
    assert painted(one)[3] > 120
