"""Two models on the same images."""

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO

import sightline
from sightline.config import Config, SourceConfig
from sightline.detection.disagreement import (
    Comparison,
    Disagreement,
    compare_boxes,
    find_disagreements,
    relabelling_list,
)
from sightline.detection.item import Item
from sightline.detection.sources.factory import open_source
from sightline.engines.opening import open_predictor
from sightline.errors import ConfigError, NotFoundError
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model
from sightline.models.predictor import Predictor
from sightline.structures import Detections
from sightline.workspace import Workspace
from support.inference import settings_of

ITEM = Item("a", "/photos/a.jpg", "", "a")
HOSTILE = ["<script>alert(1)</script>", "\"'`; drop table images; --", "two\nlines\r\n\t", "ж" * 300, "\udcff"]

Row = tuple[str, float, tuple[float, float, float, float]]

edges = st.sampled_from([0.0, 1.0, 2.0, 5.0, 8.0, 10.0]) | st.floats(0, 1000, width=32)
rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(0, 1, width=32), st.tuples(edges, edges, edges, edges)), max_size=12
)
"""Names, scores and boxes, some of them without any area."""
ious = st.sampled_from([0.01, 0.3, 0.5, 1.0])


def found(rows: Sequence[Row], classes: str = "abc") -> Detections:
    boxes = [(min(x, x1), min(y, y1), max(x, x1), max(y, y1)) for _, _, (x, y, x1, y1) in rows]
    known = tuple(dict.fromkeys([*classes, *(name for name, _, _ in rows)]))
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in rows], np.float32),
        np.array([known.index(name) for name, _, _ in rows], np.int32),
        classes=known,
    )


def compare(first: Sequence[Row], second: Sequence[Row], iou: float = 0.5) -> Disagreement:
    return compare_boxes(ITEM, (1000, 1000), found(first), found(second, "cba"), iou=iou)


def square(x: float, name: str = "a", score: float = 0.5) -> Row:
    return name, score, (x, 0, x + 10, 10)


@given(rows, ious)
def test_a_model_agrees_with_itself(rows: list[Row], iou: float) -> None:
    one = compare(rows, rows, iou)
    assert one.matched == tuple((place, place) for place in range(len(rows)))
    assert (one.weight, one.only_first, one.only_second, one.other_class) == (0, (), (), ())


@given(rows, rows, ious)
def test_either_may_be_the_first(first: list[Row], second: list[Row], iou: float) -> None:
    one, other = compare(first, second, iou), compare(second, first, iou)
    assert (one.only_first, one.only_second) == (other.only_second, other.only_first)
    for pairs, turned in ((one.matched, other.matched), (one.other_class, other.other_class)):
        assert set(pairs) == {(i, j) for j, i in turned}
    assert one.weight == other.weight


@given(rows, rows, ious)
def test_every_box_is_in_one_place(first: list[Row], second: list[Row], iou: float) -> None:
    one = compare(first, second, iou)
    pairs = one.matched + one.other_class
    assert sorted([*one.only_first, *(i for i, _ in pairs)]) == list(range(len(first)))
    assert sorted([*one.only_second, *(j for _, j in pairs)]) == list(range(len(second)))
    assert all(first[i][0] == second[j][0] for i, j in one.matched)
    assert all(first[i][0] != second[j][0] for i, j in one.other_class)
    assert one.weight >= 0


@pytest.mark.parametrize(
    ("first", "second", "expected", "weight"),
    [
        ([], [], {}, 0),
        ([square(0)], [], {"only_first": (0,)}, 0.5),
        ([], [square(0, score=0.25)], {"only_second": (0,)}, 0.25),
        ([square(0)], [square(3)], {"matched": ((0, 0),)}, 0),
        ([square(0)], [square(4)], {"only_first": (0,), "only_second": (0,)}, 1),
        ([square(0, score=0.75)], [square(3, "b", 0.25)], {"other_class": ((0, 0),)}, 0.5),
        # The largest overlap, not the surest box.
        ([square(0, score=1), square(2)], [square(2)], {"matched": ((1, 0),), "only_first": (0,)}, 1),
        # The same name before a larger overlap.
        ([square(0)], [square(0, "b"), square(3)], {"matched": ((0, 1),), "only_second": (0,)}, 0.5),
        # A box is in one pair: its second partner is alone.
        (
            [square(0)],
            [square(0, score=0.75), square(1, score=0.25)],
            {"matched": ((0, 0),), "only_second": (1,)},
            0.25,
        ),
    ],
)
def test_matching(first: list[Row], second: list[Row], expected: dict[str, Any], weight: float) -> None:
    one = compare(first, second)
    nothing: dict[str, Any] = {"matched": (), "other_class": (), "only_first": (), "only_second": ()}
    assert {name: getattr(one, name) for name in nothing} == {**nothing, **expected}
    assert one.weight == weight


@pytest.mark.parametrize("iou", [0, -1, 1.1, float("nan")])
def test_an_overlap_that_means_nothing(iou: float) -> None:
    with pytest.raises(ConfigError, match=f"iou is {iou}; expected"):
        compare([], [], iou)


Folder = Callable[..., Path]


@pytest.fixture
def photos(tmp_path: Path) -> Folder:
    """Makes a folder of so many photos, those with the numbers of `broken` unreadable."""

    def make(count: int, broken: Sequence[int] = ()) -> Path:
        folder = tmp_path / "photos"
        folder.mkdir()
        for number in range(count):
            noise = np.random.default_rng(number).integers(0, 255, (6, 8 + number % 3, 3), np.uint8)
            picture = Image.fromarray(noise).resize((80 + 10 * (number % 3), 60), Image.Resampling.NEAREST)
            place = folder / f"{number:02}.jpg"
            picture.save(place, quality=90)
            if number in broken:
                place.write_bytes(place.read_bytes()[:100])
        return folder

    return make


@pytest.fixture(scope="module")
def lively(bundle: Bundle) -> Predictor:
    return open_predictor(bundle, settings_of(bundle))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A detector that has learned nothing else."""
    torch.manual_seed(1)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
    info = describe(model, name="nano", classes=("square", "triangle", "star"), score_threshold=0.25)
    made = save_bundle(tmp_path_factory.mktemp("model") / "other", model.state_dict(), info, {})
    return open_predictor(made, settings_of(made))


def run(first: Predictor, second: Predictor, folder: Path, *, limit: int = 100, **given: Any) -> Comparison:
    source, _ = open_source(folder, SourceConfig(), Workspace(folder.parent / "ws"))
    return find_disagreements(first, second, source, limit=limit, **{"threshold": 0.1, **given})


def test_a_real_model_agrees_with_itself(lively: Predictor, photos: Folder) -> None:
    compared = run(lively, lively, photos(3))
    assert compared.images == len(compared.found) == 3
    assert all(len(one.first) and one.weight == 0 for one in compared.found)
    assert compared.classes == lively.classes


def test_classes_in_another_order(lively: Predictor, photos: Folder, tmp_path: Path) -> None:
    """The same weights with the rows of the classes moved: other numbers, the same names."""
    order, weights = [2, 0, 1], dict(lively.bundle.load().state_dict())
    for name in ("net.class_map.weight", "net.class_map.bias"):  # Its row 0 is not a class.
        weights[name] = weights[name][[0, *(1 + label for label in order)]].clone()
    info = lively.bundle.info
    moved = info.model_copy(update={"classes": tuple(info.classes[label] for label in order)})
    turned_bundle = save_bundle(tmp_path / "turned", weights, moved, {})
    turned = open_predictor(turned_bundle, settings_of(turned_bundle))
    compared = run(lively, turned, photos(3))
    assert turned.classes != lively.classes == compared.classes
    for one in compared.found:
        assert len(one.matched) == len(one.first) == len(one.second) > 0
        assert all(one.first.labels[i] != one.second.labels[j] for i, j in one.matched)
        assert one.weight == 0


def test_the_most_different_come_first(lively: Predictor, other: Predictor, photos: Folder) -> None:
    compared = run(lively, other, photos(10))
    assert [one.weight for one in compared.found] == sorted((one.weight for one in compared.found), reverse=True)
    assert compared.found[0].weight > compared.found[-1].weight
    assert len({one.uri for one in compared.found}) == 10
    assert compared.classes == ("circle", "square", "triangle", "star")
    for one in compared.found:
        assert (one.width, one.height) == (80 + 10 * (int(Path(one.uri).stem) % 3), 60)


def test_those_that_agree_are_in_the_order_of_their_names(lively: Predictor, photos: Folder) -> None:
    names = [Path(one.uri).name for one in run(lively, lively, photos(10)).found]
    assert names == sorted(names)


def test_the_same_as_asking_each(lively: Predictor, other: Predictor, photos: Folder) -> None:
    """However images are batched, and of whatever size their canvases are."""
    usual = lively.preprocessor
    square = replace(lively, preprocessor=replace(usual, letterbox=replace(usual.letterbox, square=True)))
    for one in run(square, other, photos(10)).found:
        for model, boxes in ((square, one.first), (other, one.second)):
            (expected,) = model.predict(one.uri, threshold=0.1)
            assert isinstance(expected, Detections)
            assert boxes.names == expected.names
            np.testing.assert_allclose(boxes.boxes, expected.boxes, atol=1e-2)


def test_unreadable_images_are_skipped(lively: Predictor, photos: Folder) -> None:
    compared = run(lively, lively, photos(6, broken=[0, 3, 5]))
    assert (compared.images, compared.skipped) == (3, 3)
    assert [Path(one.uri).name for one in compared.found] == ["01.jpg", "02.jpg", "04.jpg"]


def test_nothing_can_be_read(lively: Predictor, photos: Folder) -> None:
    told: list[tuple[int, int | None]] = []
    compared = run(lively, lively, photos(2, broken=[0, 1]), on_progress=lambda *so_far: told.append(so_far))
    assert (compared.images, compared.skipped, compared.found) == (0, 2, ())
    assert told == [(0, 0)]


def test_only_the_first_that_can_be_read(lively: Predictor, photos: Folder) -> None:
    """What is behind the last of them is not even looked at."""
    told: list[tuple[int, int | None]] = []
    folder = photos(14, broken=[1, 13])
    compared = run(lively, lively, folder, limit=10, on_progress=lambda *so_far: told.append(so_far))
    assert (compared.images, compared.skipped) == (10, 1)
    assert [Path(one.uri).stem for one in compared.found] == [f"{n:02}" for n in range(11) if n != 1]
    assert told == [(8, 10), (10, 10)]


def test_batches_are_small(lively: Predictor, photos: Folder) -> None:
    class Counting:
        def detect(self, images: Any) -> Any:
            sizes.append(len(images))
            return lively.runner.detect(images)

    sizes: list[int] = []
    folder = photos(10)
    run(replace(lively, runner=Counting(), batch=64), replace(lively, batch=64), folder)
    run(replace(lively, runner=Counting()), replace(lively, batch=4), folder)
    assert sizes == [8, 2, 4, 4, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [({"limit": 0}, "limit is 0"), ({"iou": 0}, "iou is 0"), ({"threshold": 2}, "threshold is 2")],
)
def test_settings_that_mean_nothing(lively: Predictor, photos: Folder, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(lively, lively, photos(0), **given)


def test_classifiers(classifier: Bundle, lively: Predictor, photos: Folder) -> None:
    """What an image is, is one box around it; also beside a detector."""
    sorter, folder = open_predictor(classifier, settings_of(classifier)), photos(3)
    for one in run(sorter, sorter, folder, threshold=0.99).found:
        assert one.first.boxes.tolist() == [[0, 0, one.width, one.height]]
        assert (one.matched, one.weight) == (((0, 0),), 0)
    mixed = run(sorter, lively, folder)
    assert mixed.classes == ("cat", "dog", "circle", "square", "triangle")
    assert all(len(one.first) == 1 and not one.matched and one.weight > 0 for one in mixed.found)


def test_classifiers_that_differ(classifier: Bundle, photos: Folder, tmp_path: Path) -> None:
    names = classifier.info.model_copy(update={"classes": ("dog", "cat")})
    made = save_bundle(tmp_path / "turned", classifier.load().state_dict(), names, {})
    sorter, turned = (open_predictor(bundle, settings_of(bundle)) for bundle in (classifier, made))
    for one in run(sorter, turned, photos(3)).found:
        assert one.other_class == ((0, 0),)
        assert one.weight == pytest.approx(one.first.scores[0])


def load_coco(content: dict[str, Any], place: Path) -> COCO:
    place.write_text(json.dumps(content, allow_nan=False))
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(place))


def test_the_list_is_coco(lively: Predictor, other: Predictor, photos: Folder, tmp_path: Path) -> None:
    compared = run(lively, other, photos(4))
    coco = load_coco(relabelling_list(compared.found, compared.classes), tmp_path / "list.json")
    assert [image["file_name"] for image in coco.loadImgs(coco.getImgIds())] == [one.uri for one in compared.found]
    assert [one["name"] for one in coco.loadCats(coco.getCatIds())] == list(compared.classes)
    assert min(coco.getCatIds()) == min(coco.getAnnIds()) == min(coco.getImgIds()) == 1
    for number, one in enumerate(compared.found, 1):
        annotations = coco.loadAnns(coco.getAnnIds(imgIds=[number]))
        assert len(annotations) == len(one.first) + len(one.second) - len(one.matched) > 0
        for annotation in annotations:
            x, y, width, height = annotation["bbox"]
            assert 0 <= x <= x + width <= one.width
            assert 0 <= y <= y + height <= one.height
            assert annotation["area"] == pytest.approx(width * height)
            assert annotation["iscrowd"] == 0
            assert 0.1 <= annotation["score"] <= 1


def test_what_stands_in_the_list() -> None:
    """Of a pair the surer box, of two names both."""
    first = [square(0, score=0.5), square(100, "a", 0.5), square(200), square(300, score=0.75)]
    second = [square(1, score=0.75), square(100, "b", 0.25), square(301, score=0.5), square(400, "c")]
    listed = relabelling_list([compare(first, second)], ["c", "b", "a", "b"])
    assert listed["categories"] == [{"id": 1, "name": "c"}, {"id": 2, "name": "b"}, {"id": 3, "name": "a"}]
    assert listed["images"] == [{"id": 1, "file_name": "/photos/a.jpg", "width": 1000, "height": 1000}]
    shown = [(one["source"], one["bbox"][0], one["category_id"], one["score"]) for one in listed["annotations"]]
    assert shown == [
        ("both", 1, 3, 0.75),
        ("both", 300, 3, 0.75),
        ("first", 100, 3, 0.5),
        ("first", 200, 3, 0.5),
        ("second", 100, 2, 0.25),
        ("second", 400, 1, 0.5),
    ]
    assert listed["annotations"][0]["bbox"] == [1, 0, 10, 10]


def test_an_empty_list(tmp_path: Path) -> None:
    coco = load_coco(relabelling_list([], ["a"]), tmp_path / "list.json")
    assert (coco.getImgIds(), coco.getAnnIds(), coco.getCatIds()) == ([], [], [1])


def test_a_name_that_the_list_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"found 'b' in '/photos/a.jpg', which is not among the classes"):
        relabelling_list([compare([square(0, "b")], [])], ["a"])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_as_they_are(name: str, tmp_path: Path) -> None:
    pick = replace(compare([square(0, name)], [square(0, name + "2")]), uri=f"/photos/{name}.jpg")
    coco = load_coco(relabelling_list([pick], [name, name + "2"]), tmp_path / "list.json")
    assert coco.loadImgs(1)[0]["file_name"] == f"/photos/{name}.jpg"
    assert [one["name"] for one in coco.loadCats([1, 2])] == [name, name + "2"]
    assert [one["category_id"] for one in coco.loadAnns([1, 2])] == [1, 2]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests of the verb, for it keeps what was compiled."""
    return tmp_path_factory.mktemp("ws")


def test_the_verb(lively: Predictor, other: Predictor, photos: Folder, workspace: Path) -> None:
    """By the paths of models, on whatever is a source."""
    folder, notes = photos(4, broken=[2]), list[str]()
    given: dict[str, Any] = {"threshold": 0.1, "workspace": workspace, "on_note": notes.append}
    first, second = lively.bundle.path, other.bundle.path
    compared = sightline.compare_images(first, second, folder, limit=2, **given)
    assert (compared.images, compared.skipped) == (2, 0)
    assert all(one.weight > 0 for one in compared.found)
    assert notes[0] == "source: a folder of images"
    assert not any("in common" in note for note in notes)
    listed = sightline.compare_images(first, second, sorted(folder.iterdir()), **given)
    assert (listed.images, listed.skipped) == (3, 1)


def test_models_without_a_common_name(lively: Predictor, photos: Folder, workspace: Path, tmp_path: Path) -> None:
    strange = lively.bundle.info.model_copy(update={"classes": ("x", "y", "z")})
    made = save_bundle(tmp_path / "strange", lively.bundle.load().state_dict(), strange, {})
    notes = list[str]()
    sightline.compare_images(lively.bundle.path, made.path, photos(1), workspace=workspace, on_note=notes.append)
    assert notes[-1].startswith("the models have no class name in common")


def test_the_verb_takes_the_settings_of_the_source(lively: Predictor, photos: Folder, workspace: Path) -> None:
    folder, model = photos(3), lively.bundle.path
    config = Config(source=SourceConfig(limit=1))
    assert sightline.compare_images(model, model, folder, config=config, workspace=workspace).images == 1
    with pytest.raises(ConfigError, match=r"source.where = .* means nothing for a source of kind folder"):
        sightline.compare_images(model, model, folder, where="split='test'", workspace=workspace)
    with pytest.raises(NotFoundError, match="nowhere"):
        sightline.compare_images(model, model, folder / "nowhere", workspace=workspace)


def test_the_verb_takes_a_condition(lively: Predictor, photos: Folder, workspace: Path, tmp_path: Path) -> None:
    folder, model, table = photos(4), lively.bundle.path, tmp_path / "table.parquet"
    names = sorted(str(place) for place in folder.iterdir())
    pq.write_table(pa.table({"path": names, "split": ["train", "test", "train", "test"]}), table)
    compared = sightline.compare_images(model, model, table, where="split = 'test'", workspace=workspace)
    assert [Path(one.uri).name for one in compared.found] == ["01.jpg", "03.jpg"]
