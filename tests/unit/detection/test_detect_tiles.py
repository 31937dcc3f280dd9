from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.detection.tiles import Tiling, merge_tiles
from sightline.structures import Detections

SIDES = st.integers(1, 3000)


@given(SIDES, SIDES, st.integers(32, 700), st.floats(0, 0.9))
def test_tiles_cover_the_image(width: int, height: int, size: int, overlap: float) -> None:
    tiles = Tiling(size, overlap).tiles(width=width, height=height)
    for side, low, high in ((width, 0, 2), (height, 1, 3)):
        spans = sorted({(tile[low], tile[high]) for tile in tiles})
        assert spans[0][0] == 0
        assert spans[-1][1] == side
        assert all(end - start == min(size, side) for start, end in spans)
        step = max(1, round(size * (1 - overlap)))
        assert all(after[0] - before[0] <= step for before, after in pairwise(spans))


def found(*rows: tuple[int, float, tuple[float, float, float, float]]) -> Detections:
    return Detections(
        np.array([box for _, _, box in rows], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in rows], np.float32),
        np.array([label for label, _, _ in rows], np.int32),
        classes=("cat", "dog"),
    )


LEFT, RIGHT = (0, 0, 100, 100), (80, 0, 180, 100)


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param(
            [(0, 0.5, (82, 10, 98, 20))],
            [(0, 0.75, (2, 10, 18, 20))],
            [(0.75, "cat", [82, 10, 98, 20])],
            id="whole on both tiles",
        ),
        pytest.param(
            [(0, 0.5, (70, 10, 100, 20))],
            [(0, 0.75, (0, 10, 30, 20))],
            [(0.75, "cat", [70, 10, 110, 20])],
            id="in part on both",
        ),
        pytest.param(
            [(0, 0.5, (82, 10, 98, 20))],
            [(1, 0.75, (2, 10, 18, 20))],
            [(0.75, "dog", [82, 10, 98, 20]), (0.5, "cat", [82, 10, 98, 20])],
            id="classes stay apart",
        ),
        pytest.param(
            [(0, 0.5, (10, 10, 20, 20))],
            [(0, 0.75, (10, 10, 20, 20))],
            [(0.75, "cat", [90, 10, 100, 20]), (0.5, "cat", [10, 10, 20, 20])],
            id="far apart",
        ),
    ],
)
def test_merging(left: list[tuple[int, float, tuple[float, ...]]], right: list[object], merged: list[object]) -> None:
    result = merge_tiles([found(*left), found(*right)], [LEFT, RIGHT])  # type: ignore[arg-type]
    rows = [(row[1], row[0], list(row[2:])) for row in result.rows()]
    assert rows == merged
