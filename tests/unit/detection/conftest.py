import sys
from pathlib import Path

import pytest
import torch

from sightline.models.bundle import Bundle, describe, save_bundle
from sightline.models.factory import make_model

sys.path.insert(0, str(Path(__file__).parent))  # `fakes` is shared by the tests below.


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small detector that sees things everywhere."""
    torch.manual_seed(0)
    model = make_model("nano", num_classes=3, size=64)
    with torch.no_grad():
        model.get_parameter("net.class_map.bias").fill_(0)  # Or else it would be sure of nothing.
    info = describe(model, name="nano", classes=("circle", "square", "triangle"), score_threshold=0.25)
    return save_bundle(tmp_path_factory.mktemp("model") / "lively", model.state_dict(), info, {})


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    torch.manual_seed(0)
    model = make_model("resnet18", num_classes=2, size=64)
    info = describe(model, name="resnet18", classes=("cat", "dog"))
    return save_bundle(tmp_path_factory.mktemp("model") / "classifier", model.state_dict(), info, {})
