"""One rule for the threshold, said where it was used; the licence is not repeated at every use."""

from pathlib import Path

import pytest
import torch

import sightline
from sightline.metrics.result import DetectionResult
from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model


@pytest.fixture
def home(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    sightline.synth("shapes", "shapes", images=6, seed=1, workspace=tmp_path)
    return tmp_path


def make_bundle(home: Path, *, own: float | None) -> Bundle:
    """A model that sees things everywhere, as if it was imported if it has no threshold of its own."""
    torch.manual_seed(0)
    classes = sightline.open_dataset("shapes", workspace=home).classes
    model = make_model("nano", num_classes=len(classes), size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)
    info = describe(model, name="nano", classes=tuple(classes), score_threshold=own, licence="AGPL-3.0")
    return save_bundle(home / "net", model.state_dict(), info, {})


@pytest.mark.parametrize(
    ("own", "given", "used", "why"),
    [
        (None, None, 0.3, "threshold 0.300 (the default: the model has none of its own)"),
        (0.45, None, 0.45, "threshold 0.450 (the best F1 on validation)"),
        (0.45, 0.6, 0.6, "threshold 0.600 (as given)"),
    ],
)
def test_evaluate_and_detect_use_the_same_threshold_and_say_it(
    home: Path, own: float | None, given: float | None, used: float, why: str
) -> None:
    bundle, notes = make_bundle(home, own=own), list[str]()
    scored = sightline.evaluate(
        bundle.path, "shapes", split="train", score_threshold=given, workspace=home, on_note=notes.append
    )
    assert isinstance(scored, DetectionResult)
    assert scored.score == used
    assert notes == [f"precision, recall and F1 at {why}"]
    notes.clear()
    settings = {"engine": "torch", "limit": 2, **({"threshold": given} if given else {})}
    found = sightline.detect(bundle.path, "shapes", workspace=home, on_note=notes.append, **settings)
    assert found.job.settings.threshold == used
    assert [note.endswith(why) for note in notes if note.startswith("model:")] == [True]
    assert "AGPL" not in " ".join(notes)


def test_models_without_a_threshold_are_compared_at_the_one_of_detect(home: Path) -> None:
    bundle = make_bundle(home, own=None)
    compared = sightline.compare_models(bundle.path, bundle.path, dataset="shapes", split="train", workspace=home)
    scored = sightline.evaluate(bundle.path, "shapes", split="train", score_threshold=0.3, workspace=home)
    assert isinstance(scored, DetectionResult)
    # It is less sure than that of everything, so at its best threshold it would find more.
    assert compared.models[0].figures["recall"] == scored.rates.recall == 0
    assert scored.map > 0
