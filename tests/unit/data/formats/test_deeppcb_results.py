"""DeepPCB's submission form, read back as its evaluation does."""

import re
from pathlib import Path

import numpy as np
import pytest

from sightline.data.formats.deeppcb import CLASSES
from sightline.data.formats.deeppcb_results import DeepPcbOutput, DeepPcbResults, result_name
from sightline.errors import ConfigError, ExistsError, FormatError

# What ICDAR's evaluation, which DeepPCB's is made from, takes for a line with confidence and type.
LINE = re.compile(r"^(-?[0-9]+),(-?[0-9]+),([0-9]+),([0-9]+),([0-1].?[0-9]*),(.*)$")
BOXES = np.array([[10.4, 20.5, 31.6, 40.0], [0.0, -0.4, 5.5, 6.0], [1, 2, 3, 4]], np.float32)
SCORES = np.array([0.99999, 0.5, 1e-5], np.float32)


def results(directory: Path, **settings: object) -> DeepPcbResults:
    threshold = settings.pop("score_threshold", 0.5)
    classes = settings.pop("classes", CLASSES)
    return DeepPcbResults(DeepPcbOutput(directory, **settings), classes, score_threshold=threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("group00041/00041/00041000_test.jpg", "00041000.txt"),
        ("00041000.jpg", "00041000.txt"),
        ("a/board.v2_test.png", "board.v2.txt"),
    ],
)
def test_names_are_those_of_the_lists(file_name: str, expected: str) -> None:
    assert result_name(file_name) == expected


def test_lines_are_what_the_evaluation_reads(tmp_path: Path) -> None:
    results(tmp_path / "out").add("g/1_test.jpg", BOXES, SCORES, np.array([5, 0, 2]))
    text = (tmp_path / "out" / "1.txt").read_text()
    found = [LINE.match(line) for line in text.splitlines()]
    assert all(found)
    assert text.splitlines() == [
        "10,20,32,40,0.999990,pin-hole",
        "0,0,6,6,0.500000,open",
        "1,2,3,4,0.000010,mousebite",
    ]


def test_types_come_from_names_whatever_their_order(tmp_path: Path) -> None:
    writer = results(tmp_path / "out", classes=CLASSES[::-1], types="number")
    writer.add("1.jpg", BOXES, SCORES, np.array([0, 1, 5]))
    assert [line.split(",")[5] for line in (tmp_path / "out" / "1.txt").read_text().splitlines()] == ["6", "5", "1"]


def test_for_the_f_score_only_boxes_from_the_threshold_on(tmp_path: Path) -> None:
    writer = results(tmp_path / "out", purpose="f")
    writer.add("1.jpg", BOXES, SCORES, np.array([0, 1, 2]))
    writer.add("2.jpg", BOXES[2:], SCORES[2:], np.array([0]))
    assert len((tmp_path / "out" / "1.txt").read_text().splitlines()) == 2
    assert (tmp_path / "out" / "2.txt").read_text() == ""


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'cat' is not one of DeepPCB's"):
        results(tmp_path / "out", classes=("open", "cat"))
    with pytest.raises(ConfigError, match="--score-threshold"):
        results(tmp_path / "out", purpose="f", score_threshold=None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "1.txt").touch()
    with pytest.raises(ExistsError):
        results(tmp_path / "full")
    writer = results(tmp_path / "out")
    writer.add("a/1_test.jpg", BOXES, SCORES, np.array([0, 1, 2]))
    with pytest.raises(FormatError, match=r"'b/1.jpg' and 'a/1_test.jpg' would both"):
        writer.add("b/1.jpg", BOXES, SCORES, np.array([0, 1, 2]))
