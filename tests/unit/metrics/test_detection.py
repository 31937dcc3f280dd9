"""The figures of detectors are those of pycocotools."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from scenes import Scene, drawn_scenes, found, metric_of, random_scene, truth

from sightline.metrics.detection import DetectionMetric
from sightline.metrics.rates import Rates
from sightline.structures import box_areas

BOX = [0.0, 0.0, 10.0, 10.0]
NOTHING_TRUE, NOTHING_FOUND = truth([], []), found([], [], [])

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "many classes": {"classes": 30, "images": 20, "max_found": 60},
    "one class": {"classes": 1, "max_found": 60},
    "equal scores": {"scores": 3, "max_found": 40},
    "one score": {"scores": 1, "max_found": 30},
    "many crowds": {"crowd": 0.6, "max_true": 12},
    "all crowds": {"crowd": 1.0},
    "on a grid": {"grid": 16.0, "scores": 8, "max_true": 14, "size": (8.0, 120.0)},
    "on a coarse grid": {"grid": 32.0, "scores": 4, "max_true": 10, "size": (16.0, 130.0)},
    "more than 100": {"classes": 2, "images": 4, "max_found": 500, "max_true": 60},
    "more than 100 of one score": {"classes": 1, "images": 3, "max_found": 300, "max_true": 120, "scores": 2},
    "float32": {"dtype": np.float32, "max_found": 60},
    "small": {"size": (1.0, 20.0)},
    "large": {"size": (100.0, 300.0)},
}


def assert_equal_to_pycocotools(scene: Scene, num_classes: int) -> None:
    result = metric_of(scene, num_classes).compute()
    evaluation = oracle.evaluate(scene, num_classes) if scene else None
    expected = oracle.stats(evaluation)
    ours = {name: getattr(result, name) for name in expected}
    assert ours == pytest.approx(expected, abs=1e-9, nan_ok=True)
    if evaluation:
        ap = oracle.class_ap(evaluation)
        assert [one.ap for one in result.per_class] == pytest.approx(ap.mean(axis=0).tolist(), abs=1e-9, nan_ok=True)
        for area, size in enumerate(("small", "medium", "large"), 1):
            by_size = [getattr(one, f"ap_{size}") for one in result.per_class]
            wanted = oracle.class_ap(evaluation, area).mean(axis=0).tolist()
            assert by_size == pytest.approx(wanted, abs=1e-9, nan_ok=True)
        assert [one.ap50 for one in result.per_class] == pytest.approx(ap[0].tolist(), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_random_scenes(kind: str, seed: int) -> None:
    scene = random_scene(seed, **KINDS[kind])
    assert_equal_to_pycocotools(scene, KINDS[kind].get("classes", 3))


@pytest.mark.parametrize("seed", range(8))
def test_sizes_are_those_of_the_annotations_not_of_the_boxes(seed: int) -> None:
    """COCO's `area` is that of the segment: a thin diagonal object has a large box and is small."""
    rng = np.random.default_rng(seed)
    scene = [
        (replace(true, areas=box_areas(true.boxes) * rng.uniform(0.02, 1.0, len(true))), boxes)
        for true, boxes in random_scene(seed, images=20, size=(16.0, 200.0))
    ]
    assert_equal_to_pycocotools(scene, 3)
    by_box = metric_of([(replace(true, areas=None), boxes) for true, boxes in scene], 3).compute()
    assert by_box.map_small != metric_of(scene, 3).compute().map_small


def test_areas_merge_over_workers() -> None:
    scene = [
        (replace(true, areas=np.full(len(true), 10.0 + 200 * (key % 12))), boxes)
        for key, (true, boxes) in enumerate(random_scene(3, images=24))
    ]
    total = DetectionMetric(["class 0", "class 1", "class 2"])
    for rank in (1, 0):
        part = DetectionMetric(total.classes)
        for key in range(rank, len(scene), 2):
            part.update(key, *scene[key])
        total.merge([part.state()])
    assert total.compute().map_small == metric_of(scene, 3).compute().map_small


@settings(max_examples=200, deadline=None)
@given(drawn_scenes)
def test_drawn_scenes(scene: Scene) -> None:
    assert_equal_to_pycocotools(scene, 2)


@pytest.mark.parametrize("seed", range(3))
def test_classes_that_do_not_occur(seed: int) -> None:
    scene = random_scene(seed, classes=2)
    assert_equal_to_pycocotools(scene, 5)
    assert np.isnan([one.ap for one in metric_of(scene, 5).compute().per_class[2:]]).all()


@pytest.mark.parametrize("thresholds", [(0.33,), (0.2, 0.33, 0.8), (1.0,), tuple(np.linspace(0.05, 0.95, 37).tolist())])
@pytest.mark.parametrize("kind", ["plain", "equal scores", "on a grid"])
def test_thresholds_of_choice(thresholds: tuple[float, ...], kind: str) -> None:
    scene = random_scene(9, **KINDS[kind])
    result = metric_of(scene, 3, iou_thresholds=thresholds).compute()
    evaluation = oracle.evaluate(scene, 3, thresholds)
    ap, recall = oracle.class_ap(evaluation), evaluation.eval["recall"]
    assert result.map == pytest.approx(np.nanmean(ap), abs=1e-9)
    assert [one.ap for one in result.per_class] == pytest.approx(ap.mean(axis=0).tolist(), abs=1e-9)
    assert result.ar100 == pytest.approx(recall[:, :, 0, 2].mean(), abs=1e-9)
    usual = oracle.stats(oracle.evaluate(scene, 3))
    assert [result.map50, result.map75] == pytest.approx([usual["map50"], usual["map75"]], abs=1e-9)


@pytest.mark.parametrize(
    ("scene", "map50", "ar100"),
    [
        ([], np.nan, np.nan),
        ([(NOTHING_TRUE, NOTHING_FOUND)], np.nan, np.nan),
        ([(NOTHING_TRUE, found([BOX], [0], [0.5]))], np.nan, np.nan),
        ([(truth([BOX], [0]), NOTHING_FOUND)], 0.0, 0.0),
        ([(truth([BOX], [0], [True]), found([BOX], [0], [0.5]))], np.nan, np.nan),
        ([(truth([BOX], [0]), found([BOX], [0], [0.5]))], 1.0, 1.0),
        ([(truth([BOX], [0]), found([BOX], [1], [0.5]))], 0.0, 0.0),
        ([(truth([BOX, BOX], [0, 0]), found([BOX], [0], [0.5]))], 51 / 101, 0.5),
        ([(truth([BOX], [0]), NOTHING_FOUND), (NOTHING_TRUE, found([BOX], [0], [0.5]))], 0.0, 0.0),
    ],
)
def test_small_cases(scene: Scene, map50: float, ar100: float) -> None:
    result = metric_of(scene, 2).compute()
    assert [result.map50, result.ar100] == pytest.approx([map50, ar100], abs=1e-9, nan_ok=True)
    assert_equal_to_pycocotools(scene, 2)


def test_a_crowd_swallows_any_number_of_boxes() -> None:
    inside = [[float(x), 0.0, x + 5.0, 5.0] for x in range(5)]
    scene = [(truth([[0, 0, 50, 50], [100, 100, 110, 110]], [0, 0], [True, False]),
              found([*inside, [100, 100, 110, 110]], [0] * 6, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]))]  # fmt: skip
    assert metric_of(scene, 1).compute().map == pytest.approx(1.0)
    assert_equal_to_pycocotools(scene, 1)


@pytest.mark.parametrize(("order", "ap"), [([0, 1], 51 / 101), ([1, 0], 1.0)])
def test_of_equal_overlaps_the_last_is_taken(order: list[int], ap: float) -> None:
    left, middle, right, further = ([x, 0.0, x + 10.0, 10.0] for x in (0.0, 2.0, 4.0, 5.0))
    # The first found box overlaps both true ones by 2/3, the second one only the right one by as much as it needs.
    scene = [(truth([[left, right][i] for i in order], [0, 0]), found([middle, further], [0, 0], [0.9, 0.8]))]
    assert metric_of(scene, 1).compute().map50 == pytest.approx(ap)
    assert_equal_to_pycocotools(scene, 1)


@pytest.mark.parametrize(("shorter", "ap"), [(0.0, 1.0), (1e-9, 1.0), (1e-7, 0.0)])
def test_a_threshold_of_one_means_almost_one(shorter: float, ap: float) -> None:
    scene = [(truth([[0, 0, 100, 100]], [0]), found([[0, 0, 100, 100 - shorter]], [0], [0.5]))]
    assert oracle.class_ap(oracle.evaluate(scene, 1, [1.0]))[0, 0] == pytest.approx(ap)
    assert metric_of(scene, 1, iou_thresholds=[1.0]).compute().map == pytest.approx(ap)


def test_order_of_images_decides_between_equal_scores() -> None:
    right, wrong = (truth([BOX], [0]), found([BOX], [0], [0.5])), (NOTHING_TRUE, found([BOX], [0], [0.5]))
    first, second = metric_of([right, wrong], 1).compute(), metric_of([wrong, right], 1).compute()
    assert [first.map, second.map] == pytest.approx([1.0, 0.5])


def test_json_is_complete_and_valid() -> None:
    result = metric_of([(truth([BOX], [0]), NOTHING_FOUND)], 2).compute()
    read = json.loads(result.to_json())
    assert read["per_class"][1] == {
        "name": "class 1", "ap": None, "ap50": None, "ap_small": None, "ap_medium": None, "ap_large": None,
        "num_true": 0, "rates": {"precision": None, "recall": None, "f1": None},
    }  # fmt: skip
    assert read["confusion"] == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert (read["map"], read["score"], read["num_images"]) == (0.0, None, 1)


class Tensor:
    """What numpy sees of a torch tensor."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    def __array__(self, dtype: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


def test_tensors_and_lists_are_taken() -> None:
    metric = DetectionMetric(["a"])
    boxes = SimpleNamespace(boxes=Tensor([BOX]), scores=Tensor([0.5]), labels=Tensor([0]))
    metric.update(0, SimpleNamespace(boxes=Tensor([BOX]), labels=Tensor([0]), ignore=Tensor([False])), boxes)
    metric.update(1, SimpleNamespace(boxes=[BOX], labels=[0], ignore=[False]), boxes)
    metric.update(2, SimpleNamespace(boxes=[], labels=[], ignore=[]), SimpleNamespace(boxes=[], scores=[], labels=[]))
    result = metric.compute()
    assert (result.num_images, result.rates) == (3, Rates(1.0, 1.0, 1.0))


def test_what_was_given_may_change_afterwards() -> None:
    boxes, metric = found([BOX], [0], [0.5]), DetectionMetric(["a"])
    metric.update(0, truth([BOX], [0]), boxes)
    boxes.boxes[:] = 0
    assert metric.compute().map == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("true", "boxes", "message"),
    [
        (truth([BOX], [2]), NOTHING_FOUND, "label 2 in image 7; expected 0 to 1"),
        (truth([BOX], [-1]), NOTHING_FOUND, "label -1 in image 7"),
        (NOTHING_TRUE, found([BOX], [3], [0.5]), "label 3 in image 7"),
    ],
)
def test_columns_that_do_not_fit(true: Any, boxes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DetectionMetric(["a", "b"]).update(7, true, boxes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": []}, "0 classes"),
        ({"iou_thresholds": []}, "0 IoU thresholds"),
        ({"iou_thresholds": [0.5, 1.5]}, "1.5"),
        ({"operating_iou": 0.0}, "an IoU threshold of 0.0"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DetectionMetric(**{"classes": ["a"], **options})
