"""Pictures of what a model finds."""

from pathlib import Path

import sightline
from sightline.models.factory import make_model
from sightline.training.pictures import draw_predictions


def test_images_that_are_made_smaller_are_drawn(tmp_path: Path) -> None:
    """To the model's canvas exactly, which gives pixels that cannot be written to; torch warns of such."""
    sightline.synth("shapes", "set", images=4, workspace=tmp_path)
    dataset = sightline.open_dataset("set", workspace=tmp_path)
    model = make_model("nano", num_classes=3, size=32)
    draw_predictions(model, dataset, tmp_path / "pictures", score_threshold=None)
    assert list((tmp_path / "pictures").iterdir())
