import sys
from pathlib import Path

import pytest
import torch

from sightline.models.bundle import CARD, Bundle, describe, save_bundle
from sightline.models.factory import make_model
from sightline.models.info import DatasetNote, RunNote
from sightline.report.card import model_card

sys.path.insert(0, str(Path(__file__).parent))  # `lively` is shared by the tests below.


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A small detector that sees things everywhere, with a card and a picture."""
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)  # Or else it would be sure of nothing.
    info = describe(
        model,
        name="nano",
        classes=("circle", "square", "triangle"),
        score_threshold=0.25,
        metrics={"score": 0.5, "map": 0.25, "map50": 0.5, "f1": float("nan")},
        per_class={"ap50/0": 0.5, "ap50/1": 0.75, "count/2": 7.0},
        dataset=DatasetNote(name="shapes", content_hash="ab" * 32),
        run=RunNote(name="first", run_id="0" * 32),
    )
    others = {CARD: model_card(info, ["picture-00.jpg"]).encode(), "picture-00.jpg": b"a picture"}
    return save_bundle(tmp_path / "bundle", model.state_dict(), info, others)
