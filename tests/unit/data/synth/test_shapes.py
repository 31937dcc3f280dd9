"""Synthetic shapes: reproducible, exactly boxed, and balanced where they carry a label."""

import numpy as np
import pytest

from sightline.data.synth.shapes import CLASSES, render_shape, render_shapes

NUM_IMAGES = 200
NOISE = 24


@pytest.mark.parametrize("render", [render_shapes, render_shape])
def test_is_a_pure_function_of_its_arguments(render) -> None:
    one, two, other = render(seed=1, index=2), render(seed=1, index=2), render(seed=1, index=3)
    assert np.array_equal(one.image, two.image)
    assert np.array_equal(one.boxes, two.boxes)
    assert not np.array_equal(one.image, other.image)


@pytest.mark.parametrize("size", [32, 64, 100])
def test_boxes_hold_the_shapes_and_nothing_else_does(size: int) -> None:
    for index in range(40):
        shapes = render_shapes(seed=3, index=index, size=size)
        assert shapes.image.shape == (size, size, 3)
        ground = np.median(shapes.image[0], axis=0)
        outside = np.abs(shapes.image - ground).max(-1) > 2.2 * NOISE
        for x0, y0, x1, y1 in shapes.boxes.astype(int):
            seen = outside[y0:y1, x0:x1]
            # Exact: every side of the box is touched by the shape.
            assert seen[0].any() and seen[-1].any() and seen[:, 0].any() and seen[:, -1].any()  # noqa: PT018
            outside[y0:y1, x0:x1] = False
        assert not outside.any()


def test_some_images_are_empty_and_all_classes_occur() -> None:
    images = [render_shapes(seed=0, index=i) for i in range(NUM_IMAGES)]
    counts = np.bincount([len(i.labels) for i in images], minlength=4)
    assert len(counts) == 4
    assert (counts > 10).all()
    assert (np.bincount(np.concatenate([i.labels for i in images]), minlength=3) > 50).all()
    assert all(i.label is None for i in images)


def test_max_shapes_bounds_the_count() -> None:
    assert max(len(render_shapes(seed=0, index=i, max_shapes=1).labels) for i in range(50)) == 1


def test_one_shape_has_a_label_and_no_boxes() -> None:
    for index in range(6):
        shape = render_shape(seed=0, index=index)
        assert shape.label == index % len(CLASSES)
        assert shape.boxes.shape == (0, 4)
        assert shape.labels.shape == (0,)
        assert np.ptp(shape.image.astype(int)) > 2 * NOISE
