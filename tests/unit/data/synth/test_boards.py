"""Synthetic boards: reproducible, exactly boxed, true to what each class means, and distributed as DeepPCB is."""

import numpy as np
import pytest

from sightline.data.synth.boards import CLASSES, render_board, render_template
from sightline.data.synth.regions import count_regions, grow
from sightline.data.synth.rendered import Rendered

SEED = 2
NUM_BOARDS = 200
NUM_PAIRS = 60

# Measured on the 6,873 boxes of DeepPCB's trainval split, at these percentiles.
PERCENTILES = (10, 25, 50, 75, 90)
DEEPPCB = {
    "width": (28, 31, 35, 42, 54),
    "height": (26, 28, 33, 39, 49),
    "area": (812, 960, 1188, 1584, 2279),
}
DEEPPCB_COUNTS = (4, 6, 7, 8, 9)
DEEPPCB_CLASS_AREA = {
    "open": (1080, 1353, 2164),
    "short": (1200, 1540, 2006),
    "mousebite": (840, 1015, 1273),
    "spur": (924, 1073, 1285),
    "copper": (1045, 1258, 1631),
    "pin-hole": (886, 1089, 1435),
}
DEEPPCB_MIX = (0.187, 0.150, 0.201, 0.166, 0.147, 0.150)


@pytest.fixture(scope="module")
def boards() -> list[Rendered]:
    return [render_board(seed=SEED, index=i) for i in range(NUM_BOARDS)]


@pytest.fixture(scope="module")
def templates() -> list[np.ndarray]:
    return [render_template(seed=SEED, index=i) for i in range(NUM_PAIRS)]


def all_boxes(boards: list[Rendered], name: str | None = None) -> np.ndarray:
    keep = [b.boxes if name is None else b.boxes[b.labels == CLASSES.index(name)] for b in boards]
    return np.concatenate(keep)


def windows(boards: list[Rendered], templates: list[np.ndarray], name: str):
    """Copper before and after each defect of a class, in its box, which holds no part of another defect."""
    for board, template in zip(boards, templates, strict=False):
        for x0, y0, x1, y1 in board.boxes[board.labels == CLASSES.index(name)].astype(int):
            yield template[y0:y1, x0:x1] == 0, board.image[y0:y1, x0:x1] == 0


def test_is_a_pure_function_of_its_arguments() -> None:
    one, two = (render_board(seed=5, index=3) for _ in range(2))
    assert np.array_equal(one.image, two.image)
    assert np.array_equal(one.boxes, two.boxes)
    assert np.array_equal(one.labels, two.labels)


@pytest.mark.parametrize(("seed", "index"), [(5, 4), (6, 3)])
def test_differs_by_seed_and_index(seed: int, index: int) -> None:
    assert (render_board(seed=5, index=3).image != render_board(seed=seed, index=index).image).mean() > 0.05


@pytest.mark.parametrize("size", [160, 320, 640, 1024])
def test_image_and_boxes_fit_the_size(size: int) -> None:
    for index in range(5):
        board = render_board(seed=SEED, index=index, size=size)
        assert board.image.shape == (size, size)
        assert board.image.dtype == np.uint8
        assert set(np.unique(board.image)) == {0, 255}
        assert board.boxes.dtype == np.float32
        assert board.labels.dtype == np.int32
        assert (board.boxes >= 0).all()
        assert (board.boxes <= size).all()
        assert (board.boxes[:, 2:] - board.boxes[:, :2] >= 12).all()


def test_every_changed_pixel_is_in_a_box_with_its_margin(boards: list[Rendered], templates: list[np.ndarray]) -> None:
    for board, template in zip(boards, templates, strict=False):
        changed = board.image != template
        for x0, y0, x1, y1 in board.boxes.astype(int):
            # Margins of 10 and 9 pixels, off by one now and then; narrower where the border cuts the box.
            assert changed[y0 + 7 : y1 - 7, x0 + 7 : x1 - 7].any()
            changed[y0 + 7 : y1 - 7, x0 + 7 : x1 - 7] = False
        assert not changed.any()


@pytest.mark.parametrize("name", CLASSES)
def test_a_defect_adds_or_removes_copper_only(boards: list[Rendered], templates: list[np.ndarray], name: str) -> None:
    for before, after in windows(boards, templates, name):
        added, removed = (after & ~before).sum(), (before & ~after).sum()
        assert (removed if name in ("short", "spur", "copper") else added) == 0
        assert added + removed >= 12


@pytest.mark.parametrize(("name", "sign"), [("open", 1), ("short", -1)])
def test_opens_cut_and_shorts_join(boards: list[Rendered], templates: list[np.ndarray], name: str, sign: int) -> None:
    for before, after in windows(boards, templates, name):
        assert (count_regions(after, min_area=12) - count_regions(before, min_area=12)) * sign > 0


@pytest.mark.parametrize(
    ("name", "adds", "stretches"),
    [("mousebite", False, 1), ("spur", True, 1), ("copper", True, 0), ("pin-hole", False, 0)],
)
def test_edge_defects_touch_one_edge_and_islands_none(
    boards: list[Rendered], templates: list[np.ndarray], name: str, adds: bool, stretches: int
) -> None:
    for before, after in windows(boards, templates, name):
        own = before if adds else ~before
        assert (grow(before != after) & own).any() == bool(stretches)
        assert count_regions(grow(grow(before != after)) & own) == stretches


def test_defects_keep_apart(boards: list[Rendered]) -> None:
    for board in boards:
        inner = board.boxes + np.array([10, 10, -9, -9], dtype=np.float32)
        low = np.maximum(inner[:, None, :2], inner[None, :, :2])
        high = np.minimum(inner[:, None, 2:], inner[None, :, 2:])
        overlap = np.clip(high - low, 0, None).prod(-1)
        assert np.count_nonzero(overlap - np.diag(np.diag(overlap))) == 0


@pytest.mark.parametrize("what", DEEPPCB)
def test_distributions_are_those_of_deeppcb(boards: list[Rendered], what: str) -> None:
    size = all_boxes(boards)[:, 2:] - all_boxes(boards)[:, :2]
    values = {
        "width": size[:, 0],
        "height": size[:, 1],
        "area": size.prod(1),
    }[what]
    assert np.percentile(values, PERCENTILES) == pytest.approx(DEEPPCB[what], rel=0.2)


@pytest.mark.parametrize("name", CLASSES)
def test_sizes_by_class_are_those_of_deeppcb(boards: list[Rendered], name: str) -> None:
    boxes = all_boxes(boards, name)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    assert np.percentile(area, (25, 50, 75)) == pytest.approx(DEEPPCB_CLASS_AREA[name], rel=0.2)


def test_counts_are_those_of_deeppcb(boards: list[Rendered]) -> None:
    counts = [len(b.labels) for b in boards]
    # Whole numbers: one more or less at a percentile is as close as a sample of this size gets.
    assert np.percentile(counts, PERCENTILES) == pytest.approx(DEEPPCB_COUNTS, abs=1)
    assert np.mean(counts) == pytest.approx(6.87, rel=0.08)


def test_class_mix_is_that_of_deeppcb(boards: list[Rendered]) -> None:
    counts = np.bincount(np.concatenate([b.labels for b in boards]), minlength=len(CLASSES))
    assert counts / counts.sum() == pytest.approx(DEEPPCB_MIX, abs=0.04)


@pytest.mark.parametrize(
    ("rows", "min_area", "expected"),
    [
        (["....", "...."], 1, 0),
        (["#..#", "#..#"], 1, 2),
        (["#..#", "####"], 1, 1),
        (["#...", ".#..", "..#."], 1, 1),
        (["##.#", "##.."], 2, 1),
        (["...#", "#..."], 1, 2),
        (["#.#.#", "#####", ".....", "#.#.#"], 1, 4),
    ],
)
def test_count_regions(rows: list[str], min_area: int, expected: int) -> None:
    mask = np.array([[c == "#" for c in row] for row in rows])
    assert count_regions(mask, min_area=min_area) == expected
