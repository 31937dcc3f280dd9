"""Learning curves and predictions as pictures."""

import io

import numpy as np
from PIL import Image

from sightline.report.charts import to_png
from sightline.report.curve import learning_curve
from sightline.report.predictions import draw_prediction
from sightline.structures import Annotation, Detections, empty_boxes


def test_a_curve_of_many_steps_and_of_evaluations_alone() -> None:
    steps = np.linspace(0, 2, 1000)
    history = [{"epoch": epoch, "map": 0.1 * epoch, "map50": 0.2 * epoch, "score": 0.5} for epoch in (1, 2)]
    chart = learning_curve(steps.tolist(), (5 * np.exp(-steps)).tolist(), history)
    loss, scores = (panel["data"] for panel in chart.to_dict()["hconcat"])
    datasets = chart.to_dict().get("datasets", {})
    assert len(loss.get("values") or datasets[loss["name"]]) == 300
    assert {row["name"] for row in scores.get("values") or datasets[scores["name"]]} == {"mAP", "mAP50"}
    image = Image.open(io.BytesIO(to_png(chart)))
    assert image.width > 1000
    assert image.getpixel((0, 0))[:3] == (255, 255, 255)  # type: ignore[index]
    assert to_png(learning_curve([], [], history))[:4] == b"\x89PNG"


def test_truth_stands_left_and_findings_right() -> None:
    black = np.zeros((60, 120, 3), np.uint8)
    truth = Annotation(np.array([[10, 10, 50, 50]], np.float32), np.array([0], np.int32), np.array([False]))
    nothing = Detections(empty_boxes(), np.zeros(0, np.float32), np.zeros(0, np.int32))
    sheet = np.asarray(draw_prediction(black, truth, nothing, classes=["cat"]))
    below_caption = sheet[40:]
    left, right = below_caption[:, :480], below_caption[:, 488:]
    assert left.any()
    assert not right.any()
