import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sightline.report.suspicion import SAME_IOU, BoxTable, same_place_pairs

sides = st.sampled_from([0.0, 1.0, 2.0, 40.0])
shapes = st.sampled_from([100.0, 101.0, 99.0, 20.0, 1000.0])
rows = st.lists(st.tuples(st.integers(0, 2), sides, sides, shapes, shapes), min_size=1, max_size=30)


def table_of(rows: list[tuple[int, float, float, float, float]]) -> BoxTable:
    rows = sorted(rows)
    xyxy = np.array([(x, y, x + width, y + height) for _, x, y, width, height in rows], np.float32)
    image = np.array([row[0] for row in rows], np.int64)
    return BoxTable(xyxy, np.zeros(len(rows), np.int32), image, np.full((len(rows), 2), 2000, np.float32))


def iou(a: np.ndarray, b: np.ndarray) -> float:
    overlap = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return float(overlap / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - overlap))


@given(rows)
def test_the_sweep_finds_what_comparing_all_pairs_finds(rows: list[tuple[int, float, float, float, float]]) -> None:
    table = table_of(rows)
    boxes = table.xyxy.astype(np.float64)
    expected = {
        (i, j)
        for j in range(len(rows))
        for i in range(j)
        if table.image[i] == table.image[j] and iou(boxes[i], boxes[j]) > SAME_IOU
    }
    first, second = same_place_pairs(table)
    assert {(min(pair), max(pair)) for pair in zip(first.tolist(), second.tolist(), strict=True)} == expected
    assert len(first) == len(expected)
