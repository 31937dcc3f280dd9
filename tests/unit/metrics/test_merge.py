"""Any number of workers compute exactly what one does."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import Scene, drawn_scenes, found, metric_of, random_scene, truth

from sightline.metrics.classification import ClassificationMetric
from sightline.metrics.columns import State
from sightline.metrics.detection import DetectionMetric

CLASSES = ["class 0", "class 1", "class 2"]

scenes = st.one_of(
    drawn_scenes,
    st.builds(
        random_scene,
        st.integers(0, 10**6),
        images=st.integers(1, 12),
        scores=st.sampled_from([0, 1, 3]),
        crowd=st.sampled_from([0.0, 0.3]),
        grid=st.sampled_from([0.0, 16.0]),
    ),
)


def sent(state: State) -> State:
    received: State = pickle.loads(pickle.dumps(state))
    return received


def draw_ranks(data: st.DataObject, images: int) -> list[list[int]]:
    """Images of each rank, in the order in which the rank sees them; some ranks may have none."""
    world = data.draw(st.integers(1, 5))
    order = data.draw(st.permutations(range(images)))
    owners = data.draw(st.lists(st.integers(0, world - 1), min_size=images, max_size=images))
    return [[image for image, owner in zip(order, owners, strict=True) if owner == rank] for rank in range(world)]


def worker(scene: Scene, images: list[int], keys: list[int], **options: Any) -> DetectionMetric:
    metric = DetectionMetric(CLASSES, **options)
    for image in images:
        metric.update(keys[image], *scene[image])
    return metric


@settings(max_examples=150, deadline=None)
@given(scenes, st.data())
def test_detection_of_any_split(scene: Scene, data: st.DataObject) -> None:
    options = data.draw(st.sampled_from([{}, {"iou_thresholds": (0.33,), "operating_iou": 0.33}]))
    alone = metric_of(scene, 3, **options).compute().to_json()
    gaps = data.draw(st.lists(st.integers(1, 9), min_size=len(scene), max_size=len(scene)))
    keys = [sum(gaps[: image + 1]) for image in range(len(scene))]
    ranks = draw_ranks(data, len(scene))
    states = [sent(worker(scene, images, keys, **options).state()) for images in ranks]
    total = DetectionMetric(CLASSES, **options)
    total.merge(data.draw(st.permutations(states)))
    assert total.compute().to_json() == alone
    assert total.compute().to_json() == alone  # Computing changes nothing.


@settings(max_examples=30, deadline=None)
@given(scenes, st.data())
def test_merged_states_can_be_merged_again(scene: Scene, data: st.DataObject) -> None:
    keys = list(range(len(scene)))
    first, *others = (worker(scene, images, keys) for images in draw_ranks(data, len(scene)))
    middle = DetectionMetric(CLASSES)
    middle.merge(other.state() for other in others)
    first.merge([middle.state()])
    assert first.compute().to_json() == metric_of(scene, 3).compute().to_json()


def test_workers_of_different_precision() -> None:
    scene = random_scene(3, images=6, dtype="float32")
    wide = [(truth(t.boxes, t.labels, t.ignore), found(f.boxes, f.labels, f.scores)) for t, f in scene]
    total, keys = DetectionMetric(CLASSES), list(range(6))
    total.merge([worker(scene, [4, 0, 2], keys).state(), worker(wide, [1, 3, 5], keys).state()])
    assert total.compute().to_json() == metric_of(wide, 3).compute().to_json()


def test_state_is_small() -> None:
    state = metric_of(random_scene(0, images=50, dtype="float32"), 3).state()
    rows = len(state["labels"])
    assert sum(len(state[name]) * state[name].itemsize for name in ("scores", "labels")) == rows * 8
    assert state["boxes"].nbytes == rows * 16


def test_an_image_given_twice_is_refused() -> None:
    metric = metric_of(random_scene(0, images=3), 3)
    metric.merge([metric.state()])
    with pytest.raises(ValueError, match="image 0 was given 2 times"):
        metric.compute()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 3), min_size=7, max_size=7)), max_size=12), st.data()
)
def test_classification_of_any_split(images: list[tuple[int, list[int]]], data: st.DataObject) -> None:
    names = [str(label) for label in range(7)]
    alone, total = ClassificationMetric(names), ClassificationMetric(names)
    for key, (label, scores) in enumerate(images):
        alone.update(key, label, scores)
    for rank in draw_ranks(data, len(images)):
        metric = ClassificationMetric(names)
        for key in rank:
            metric.update(key, *images[key])
        total.merge([sent(metric.state())])
    assert total.compute().to_json() == alone.compute().to_json()
