"""torchvision's families and classifiers behind the protocol."""

import numpy as np
import pytest
import torch
from torch.nn import BatchNorm2d

from sightline.errors import ConfigError
from sightline.models.detector import Target, total_loss
from sightline.models.factory import make_model
from sightline.structures import Annotation

IMAGES = torch.randint(0, 255, (2, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
TARGETS = [
    Target(torch.tensor([[10.0, 10, 60, 50]]), torch.tensor([1]), torch.tensor([False])),
    Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)),
]
DETECTORS = ["ssdlite", "fasterrcnn-mobilenet-320", "fasterrcnn-mobilenetv2", "retinanet", "fcos"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_learn_and_detect(name: str) -> None:
    model = make_model(name, num_classes=3, size=96).train()
    terms = model.loss(IMAGES, TARGETS, [5, 6])
    total_loss(terms).backward()
    assert all(torch.isfinite(term.total) for term in terms)
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    nothing = model.loss(IMAGES[:0], [], [])
    assert [term.name for term in nothing] == [term.name for term in terms]
    assert all(term.total == 0 for term in nothing)
    found = model.eval().detect(np.ascontiguousarray(IMAGES.permute(0, 2, 3, 1).numpy()))
    assert len(found) == 2
    assert all(((one.labels >= 0) & (one.labels < 3)).all() for one in found)


def test_proposals_are_sampled_by_the_key_of_each_image() -> None:
    model = make_model("fasterrcnn-mobilenet-320", num_classes=3, size=192).train()
    images = IMAGES.repeat(1, 1, 2, 2)  # Large enough for more anchors than are sampled.

    def loss(keys: list[int], global_seed: int) -> list[float]:
        torch.manual_seed(global_seed)
        return [term.total.item() for term in model.loss(images, TARGETS, keys)]

    assert loss([5, 6], 0) == loss([5, 6], 1)
    assert loss([5, 6], 0) != loss([7, 8], 0)


@pytest.mark.parametrize("name", ["ssdlite", "mobilenet"])
def test_statistics_of_batchnorm_follow_within_tens_of_steps(name: str) -> None:
    norm = next(part for part in make_model(name, num_classes=3).train().modules() if isinstance(part, BatchNorm2d))
    for _ in range(30):
        norm(torch.full((2, norm.num_features, 4, 4), 5.0))
    torch.testing.assert_close(norm.running_mean, torch.full((norm.num_features,), 5.0), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", ["ssdlite", "resnet18"])
def test_small_images_are_made_larger(name: str) -> None:
    image = np.zeros((40, 80, 3), np.uint8)
    truth = Annotation(np.array([[10, 10, 20, 40]], np.float32), np.zeros(1, np.int32), np.zeros(1, np.bool_))
    fitted, moved = make_model(name, num_classes=3, size=160).letterbox(image, truth)
    assert fitted.shape == (160, 160, 3)
    assert moved.boxes.tolist() == [[20, 20, 40, 80]]


def test_unknown_model() -> None:
    with pytest.raises(ConfigError, match="'nanno' is not known: take one of nano, ssdlite"):
        make_model("nanno", num_classes=3)
