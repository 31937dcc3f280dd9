"""Boxes must follow the pixels: each box is painted in its own colour, and found again after the change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.config import AugmentConfig
from sightline.data.augment import augment, keyed_generator, photometric
from sightline.data.geometry import FILL, Scene, crop, hflip, rotate90, scale_translate, vflip
from sightline.data.mosaic import mosaic
from sightline.structures import Annotation

COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0], [255, 0, 255], [0, 255, 255]], np.uint8)
NOTHING = dict.fromkeys(set(AugmentConfig.model_fields) - {"crop_min", "min_visible"}, 0.0)
GAP = 6


def only(**settings: float) -> AugmentConfig:
    return AugmentConfig(**(NOTHING | settings))


def painted(boxes: list[tuple[int, int, int, int]], *, width: int, height: int, first: int = 0) -> Scene:
    """A gray canvas with each box filled in the colour of its label."""
    labels = np.arange(first, first + len(boxes), dtype=np.int32)
    image = np.full((height, width, 3), FILL, np.uint8)
    for (x0, y0, x1, y1), label in zip(boxes, labels, strict=True):
        image[y0:y1, x0:x1] = COLOURS[label]
    return Scene.of(image, Annotation(np.array(boxes, np.float32).reshape(-1, 4), labels, labels % 2 == 1))


@st.composite
def scenes(draw: st.DrawFn, *, smallest: int = 4) -> Scene:
    """Up to six boxes in the cells of a 3 x 2 grid, apart from each other, possibly at the image's edge."""
    cell = draw(st.integers(24, 40)), draw(st.integers(24, 40))
    boxes = []
    for number in draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=6)):
        spans = []
        for place, length in zip((number % 3, number // 3), cell, strict=True):
            low = draw(st.integers(0 if place == 0 else GAP, length - smallest))
            high = draw(st.integers(low + smallest, length))
            spans.append((place * length + low, place * length + high))
        boxes.append((spans[0][0], spans[1][0], spans[0][1], spans[1][1]))
    return painted(boxes, width=3 * cell[0], height=2 * cell[1])


def extent(image: np.ndarray, label: int) -> tuple[np.ndarray | None, int]:
    """Where the colour of a label is, as a box, and its number of pixels; each pixel counts for the nearest colour."""
    palette = np.concatenate([COLOURS, np.full((1, 3), FILL, np.uint8)]).astype(int)
    nearest = ((image[:, :, None].astype(int) - palette) ** 2).sum(-1).argmin(-1)
    ys, xs = np.nonzero(nearest == label)
    return (np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]), len(xs)) if len(xs) else (None, 0)


def check(image, annotation, before: list[Annotation], *, within: float, min_visible: float, scale: float = 1) -> None:
    """Every box that is left lies where its colour is; of every one that is gone, little is to be seen."""
    assert image.flags.c_contiguous
    found = dict(zip(annotation.labels.tolist(), annotation.boxes, strict=True))
    assert np.array_equal(annotation.ignore, annotation.labels % 2 == 1)
    for label, box in [(label, box) for one in before for label, box in zip(one.labels, one.boxes, strict=True)]:
        seen, count = extent(image, label)
        if label in found:
            width, height = found[label][2:] - found[label][:2]
            if seen is None:
                assert min(width, height) <= 2 * within
            else:
                assert np.abs(seen - found[label]).max() <= within, (seen, found[label])
        else:
            width, height = (box[2:] - box[:2]) * scale
            slack = within * 2 * (width + height + 2)
            assert count <= min_visible * width * height + slack


@given(scene=scenes(), seed=st.integers(0, 2**32), min_visible=st.sampled_from([0.0, 0.25, 0.7]))
def test_flips_turns_and_crops_are_exact(scene: Scene, seed: int, min_visible: float) -> None:
    config = only(hflip=0.5, vflip=0.5, rotate90=0.7, crop=0.7, crop_min=0.2, min_visible=min_visible)
    image, annotation = augment(scene.image, scene.annotation, config=config, rng=keyed_generator(seed, 0, 0))
    check(image, annotation, [scene.annotation], within=0, min_visible=min_visible)


@pytest.mark.parametrize(
    ("change", "box"),
    [
        (hflip, [70, 5, 90, 15]),
        (vflip, [10, 45, 30, 55]),
        (lambda scene: rotate90(scene, 1), [5, 70, 15, 90]),
        (lambda scene: rotate90(scene, 2), [70, 45, 90, 55]),
        (lambda scene: rotate90(scene, 3), [45, 10, 55, 30]),
        (lambda scene: crop(scene, left=15, top=0, width=40, height=10), [0, 5, 15, 10]),
    ],
)
def test_each_exact_change(change, box: list[int]) -> None:
    scene = change(painted([(10, 5, 30, 15)], width=100, height=60))
    assert scene.annotation.boxes.tolist() == [box]
    assert extent(scene.pixels(), 0)[0].tolist() == box


def test_a_mirror_image_maps_edges_exactly() -> None:
    scene = Scene.of(np.zeros((4, 10, 3), np.uint8), painted([(0, 0, 1, 1)], width=10, height=4).annotation)
    sharp = scene.moved(scene.image, np.array([[1.25, 0, 3.5, 4]], np.float32))
    assert hflip(sharp).annotation.boxes.tolist() == [[6.5, 0, 8.75, 4]]


@given(scene=scenes(smallest=8), seed=st.integers(0, 2**32), min_visible=st.sampled_from([0.1, 0.4]))
def test_scaled_and_moved_boxes_follow(scene: Scene, seed: int, min_visible: float) -> None:
    config = only(scale=0.4, translate=0.4, hflip=0.5, min_visible=min_visible)
    rng = keyed_generator(seed, 0, 0)
    scale = 1 + 0.4 * (2 * keyed_generator(seed, 0, 0).random((7, 6))[2, 0] - 1)
    image, annotation = augment(scene.image, scene.annotation, config=config, rng=rng)
    assert image.shape == scene.image.shape
    check(image, annotation, [scene.annotation], within=1, min_visible=min_visible, scale=scale)


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, (3.0, -2.0)), (1.3, (0.4, 5.2)), (0.7, (-9.3, 2.0)), (1.0, (0.5, 0))]
)
def test_scaling_is_right_below_the_pixel(scale: float, shift: tuple[float, float]) -> None:
    """On a ramp every pixel says where it came from."""
    ramp = np.broadcast_to((np.arange(100) * 2)[None, :, None], (60, 100, 3)).astype(np.uint8)
    image = scale_translate(Scene.of(ramp, painted([], width=1, height=1).annotation), scale=scale, shift=shift).image
    origin = 50 * (1 - scale) + shift[0]
    source = (np.arange(100) + 0.5 - origin) / scale
    inner = (source > 2) & (source < 98)
    middle = image[30, :, 0].astype(float)
    assert np.abs(middle[inner] - (source[inner] - 0.5) * 2).max() <= 1
    outside = (source < -1) | (source > 101)
    assert (middle[outside] == FILL).all()


def test_an_image_moved_out_of_the_picture_leaves_gray() -> None:
    scene = scale_translate(painted([(10, 10, 20, 20)], width=40, height=30), scale=0.01, shift=(39.9, 0))
    assert (scene.image == FILL).all()
    assert len(scene.visible_annotation(0.0)) == 0


@pytest.mark.parametrize(("min_visible", "kept"), [(0.0, 1), (0.24, 1), (0.26, 0), (1.0, 0)])
def test_what_is_left_counts_over_all_changes(min_visible: float, kept: int) -> None:
    """Two crops that leave a half each leave a quarter."""
    scene = crop(painted([(10, 10, 30, 30)], width=60, height=60), left=20, top=0, width=40, height=60)
    scene = crop(hflip(scene), left=0, top=20, width=40, height=40)
    assert len(scene.visible_annotation(min_visible)) == kept


def test_a_whole_box_survives_min_visible_1() -> None:
    scene = painted([(0, 0, 63, 47)], width=63, height=47)
    config = only(hflip=0.5, vflip=0.5, rotate90=1, scale=0.9, min_visible=1)
    for seed in range(50):
        _, annotation = augment(scene.image, scene.annotation, config=config, rng=keyed_generator(seed, 0, 0))
        scale = 1 + 0.9 * (2 * keyed_generator(seed, 0, 0).random((7, 6))[2, 0] - 1)
        assert len(annotation) == (scale <= 1)


def test_boxes_over_the_edge_of_the_source_are_clipped() -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    boxes = np.array([[-10, 0, 10, 10], [15, 0, 115, 10]], np.float32)
    given_ = Annotation(boxes, np.array([3, 4], np.int32), np.zeros(2, np.bool_))
    _, annotation = augment(image, given_, config=only(min_visible=0.4), rng=keyed_generator(0, 0, 0))
    assert annotation.boxes.tolist() == [[0, 0, 10, 10]]
    assert annotation.labels.tolist() == [3]


@given(scene=scenes(), factors=st.tuples(*[st.floats(0.3, 1.7)] * 3))
def test_photometric_is_what_it_says(scene: Scene, factors: tuple[float, float, float]) -> None:
    brightness, contrast, saturation = factors
    values = scene.image.astype(float)
    gray = (values @ [0.299, 0.587, 0.114])[..., None]
    expected = ((gray + (values - gray) * saturation) * brightness - 127.5) * contrast + 127.5
    found = photometric(scene.image, brightness=brightness, contrast=contrast, saturation=saturation)
    assert np.abs(found - expected.clip(0, 255)).max() <= 0.51
    without = photometric(scene.image, brightness=brightness, contrast=contrast)
    assert np.abs(without - ((values * brightness - 127.5) * contrast + 127.5).clip(0, 255)).max() <= 0.51
    assert found.flags.writeable
    assert without.flags.writeable


def test_photometric_leaves_boxes_and_input_alone() -> None:
    scene = painted([(10, 5, 30, 15), (40, 20, 60, 50)], width=100, height=60)
    config = only(brightness=0.5, contrast=0.5, saturation=0.5)
    copy = scene.image.copy()
    image, annotation = augment(scene.image, scene.annotation, config=config, rng=keyed_generator(1, 0, 0))
    assert np.array_equal(annotation.boxes, scene.annotation.boxes)
    assert np.array_equal(scene.image, copy)
    assert not np.array_equal(image, copy)


@settings(max_examples=60)
@given(data=st.data(), centre=st.tuples(st.integers(30, 90), st.integers(30, 60)))
def test_mosaic_boxes_follow(data: st.DataObject, centre: tuple[int, int]) -> None:
    parts = []
    for number in range(4):
        width, height = data.draw(st.integers(50, 150)), data.draw(st.integers(50, 150))
        x, y = data.draw(st.integers(0, width - 20)), data.draw(st.integers(0, height - 20))
        box = (x, y, data.draw(st.integers(x + 12, width)), data.draw(st.integers(y + 12, height)))
        parts.append(painted([box], width=width, height=height, first=number))
    joined = mosaic(parts, centre=centre, size=(120, 90))
    assert joined.image.shape == (90, 120, 3)
    annotation = joined.visible_annotation(0.3)
    check(joined.image, annotation, [part.annotation for part in parts], within=1.5, min_visible=0.3, scale=2)
    for label, (x0, y0, x1, y1) in zip(annotation.labels.tolist(), annotation.boxes, strict=True):
        assert (x1 <= centre[0]) if label % 2 == 0 else (x0 >= centre[0])
        assert (y1 <= centre[1]) if label < 2 else (y0 >= centre[1])


@pytest.mark.parametrize("size", [(200, 50), (50, 200)])
def test_mosaic_keeps_the_corners_at_the_centre(size: tuple[int, int]) -> None:
    """A box in the corner that meets the other three images stays whole, whatever hangs over elsewhere."""
    (width, height), (x, y) = size, (60, 50)
    lefts, tops = (width - 16, 0, width - 16, 0), (height - 16, height - 16, 0, 0)
    corners = [(left, top, left + 16, top + 16) for left, top in zip(lefts, tops, strict=True)]
    parts = [painted([box], width=width, height=height, first=number) for number, box in enumerate(corners)]
    joined = mosaic(parts, centre=(x, y), size=(120, 100))
    boxes = joined.visible_annotation(1.0).boxes
    assert boxes[:, [2, 0, 2, 0]].diagonal().tolist() == pytest.approx([x] * 4, abs=1e-3)
    assert boxes[:, [3, 3, 1, 1]].diagonal().tolist() == pytest.approx([y] * 4, abs=1e-3)


def test_augment_joins_partners_it_fetches() -> None:
    scenes_ = [painted([(4, 4, 40, 30)], width=80, height=60, first=number) for number in range(6)]
    asked: list[int] = []

    def fetch(index: int) -> tuple[np.ndarray, Annotation]:
        asked.append(index)
        return scenes_[index].image, scenes_[index].annotation

    for seed in range(30):
        rng = keyed_generator(seed, 0, 0)
        image, annotation = augment(
            scenes_[0].image, scenes_[0].annotation, config=only(mosaic=1), rng=rng, fetch=fetch, num_images=6
        )
        assert image.shape == (60, 80, 3)
        assert set(annotation.labels.tolist()) <= {0, *asked[-3:]}
    assert len(asked) == 90
    assert set(asked) == set(range(6))


def test_classified_images_are_not_joined() -> None:
    scene = painted([], width=20, height=20)
    labelled = Annotation(scene.annotation.boxes, scene.annotation.labels, scene.annotation.ignore, label=4)
    _, annotation = augment(
        scene.image, labelled, config=only(mosaic=1, hflip=1, crop=1), rng=keyed_generator(0, 0, 0), fetch=pytest.fail
    )
    assert annotation.label == 4


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (3, 1)])
def test_tiny_images_pass(shape: tuple[int, int]) -> None:
    image = np.zeros((*shape, 3), np.uint8)
    config = AugmentConfig(**dict.fromkeys(NOTHING, 0.9), crop_min=0.01)
    nothing = painted([], width=1, height=1).annotation
    for seed in range(40):
        rng = keyed_generator(seed, 0, 0)
        found, _ = augment(image, nothing, config=config, rng=rng, fetch=lambda _: (image, nothing), num_images=1)
        assert min(found.shape) >= 1


def test_keys_give_independent_numbers() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 0, 0)]
    drawn = {tuple(keyed_generator(*key).random(3)) for key in keys}
    drawn.add(tuple(keyed_generator(0, 0, 0, stream=1).random(3)))
    assert len(drawn) == 6
    assert keyed_generator(2**64 + 5, 0, 0).random() == keyed_generator(5, 0, 0).random()
    assert keyed_generator(12345, 7, 1000).random() == 0.9186649617533107


def test_switching_one_change_on_leaves_the_others_as_they_were() -> None:
    scene = painted([(10, 5, 30, 15)], width=100, height=60)
    for seed in range(20):
        found = [
            augment(scene.image, scene.annotation, config=config, rng=keyed_generator(seed, 0, 0))[1]
            for config in (only(hflip=0.5), only(hflip=0.5, brightness=0.5))
        ]
        assert np.array_equal(found[0].boxes, found[1].boxes)


def test_active() -> None:
    assert AugmentConfig().active
    assert not only().active
    assert only(saturation=0.1).active


def test_regions_to_ignore_stay_however_little_is_left() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 10]], np.float32)
    annotation = Annotation(boxes, np.zeros(2, np.int32), np.array([False, True]))
    scene = crop(Scene.of(np.zeros((20, 20, 3), np.uint8), annotation), left=9, top=0, width=10, height=20)
    left = scene.visible_annotation(0.5)
    assert left.ignore.tolist() == [True]
    assert left.boxes.tolist() == [[0, 0, 1, 10]]
