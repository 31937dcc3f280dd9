"""The table that grows while a model trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sightline.cli.session import Session
from sightline.cli.training import TrainingView

DETECTS = [{"score": 0.5, "map": 0.25, "map50": 0.5, "f1": 0.4, "score_threshold": 0.1}, {"score": 0.4, "map": 0.2}]
CLASSIFIES = [{"score": 0.5, "accuracy": 0.5}, {"score": 0.75, "accuracy": 0.75}]


@pytest.mark.parametrize(
    ("scores", "header", "stars"),
    [
        (DETECTS, ["epoch", "loss", "mAP", "mAP50", "F1", "images/s", "elapsed"], [True, False]),
        (CLASSIFIES, ["epoch", "loss", "accuracy", "images/s", "elapsed"], [True, True]),
    ],
)
def test_a_header_once_and_aligned_rows(
    capsys: pytest.CaptureFixture[str], scores: list[dict[str, float]], header: list[str], stars: list[bool]
) -> None:
    progress: Any = SimpleNamespace(step=1, epoch=0)
    with TrainingView(Session(Path()), epochs=2) as view:
        for epoch, row in enumerate(scores, 1):
            view.on_step(progress, 10, {"loss": 3.0}, 4)
            view.on_step(progress, 10, {"loss": 1.0}, 4)
            view.on_scores(epoch, {**DETECTS[0], **row} if "map" in row else row)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == header
    assert [line.split()[:2] for line in lines[1:]] == [["1/2", "2.0000"], ["2/2", "2.0000"]]
    assert [line.endswith("*") for line in lines[1:]] == stars
    assert {len(line.rstrip(" *")) for line in lines} == {9 * len(header)}
