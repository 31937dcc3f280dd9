"""Scores and confusion in the terminal."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from sightline.metrics.classification import ClassificationMetric, ClassificationResult
from sightline.metrics.detection import DetectionMetric
from sightline.metrics.result import DetectionResult
from sightline.report.scores import MOST_IN_MATRIX, print_scores
from sightline.structures import Annotation, Detections

BOXES = np.array([[0, 0, 10, 10], [20, 20, 60, 60], [100, 100, 300, 300]], np.float32)


def printed(result: DetectionResult | ClassificationResult, width: int = 160) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_scores(console, result)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b" not in text
    return [line.split() for line in text.splitlines()]


def detected(names: list[str], true: list[int], found: list[int]) -> DetectionResult:
    """Boxes in the same places; those beyond the number of true ones lie where nothing is."""
    metric = DetectionMetric(names, score_threshold=0.5)
    truth = Annotation(BOXES[: len(true)], np.array(true, np.int32), np.zeros(len(true), bool))
    scores = np.linspace(0.9, 0.8, len(found))
    metric.update(0, truth, Detections(BOXES[: len(found)], scores, np.array(found, np.int32)))
    return metric.compute()


def test_a_detector() -> None:
    lines = printed(detected(["cat", "dog"], [0, 1, 1], [0, 0, 1]))
    assert ["cat", "1", "1.000", "1.000", "1.000", "-", "-", "0.500", "1.000", "0.667"] in lines
    assert ["true", "/", "found", "as", "cat", "dog", "missed"] in lines
    assert ["cat", "1", "·", "·"] in lines
    assert ["dog", "1", "1", "·"] in lines
    assert ["background", "·", "·"] in lines
    assert any(line[:6] == ["precision", "0.667", "recall", "0.667", "F1", "0.667"] for line in lines)


def test_missed_and_made_up() -> None:
    result = detected(["cat"], [0, 0], [0])
    assert ["cat", "1", "1"] in printed(result)
    assert json.loads(result.to_json())["confusion"] == [[1, 1], [0, 0]]
    assert ["background", "2"] in printed(detected(["cat"], [0], [0, 0, 0]))


def test_many_classes_are_listed_by_their_worst_confusions() -> None:
    names = [f"class {number}" for number in range(MOST_IN_MATRIX + 1)]
    lines = printed(detected(names, [3, 4, 5], [3, 9]))
    assert ["class", "4", "class", "9", "1", "100", "%"] in lines
    assert ["any", "class", "missed", "1", "33", "%"] in lines
    assert ["background", "any", "class", "0"] in lines
    assert ["true", "/", "found", "as"] not in [line[:4] for line in lines]


def test_nothing_found() -> None:
    metric = DetectionMetric(["cat"])
    metric.update(0, Annotation(BOXES[:1], np.array([0], np.int32), np.array([False])), nothing())
    assert any(line[:3] == ["Nothing", "was", "found,"] for line in printed(metric.compute()))


def nothing() -> Detections:
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0), np.zeros(0, np.int32))


def test_a_classifier() -> None:
    metric = ClassificationMetric(["cat", "dog"])
    metric.update(0, 0, [0.9, 0.1])
    metric.update(1, 1, [0.9, 0.1])
    lines = printed(metric.compute())
    assert ["dog", "1", "-", "0.000", "0.000"] in lines
    assert ["true", "/", "found", "as", "cat", "dog"] in lines
    assert ["dog", "1", "·"] in lines


@pytest.mark.parametrize("name", ["[bold red]loud[/]", "esc\x1b[31m\nape"])
def test_names_are_printed_as_they_are(name: str) -> None:
    words = [word for line in printed(detected([name], [0], [0])) for word in line]
    assert any(word.startswith(("[bold", "esc\\x1b")) for word in words)
