"""YOLO networks and loss of the package in our hands: the same numbers as in its own, in parts that add up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lively import make_canvases, make_images, make_lively

from sightline.errors import ConfigError, MissingExtraError
from sightline.models import yolo_package
from sightline.models.detector import Target, total_loss
from sightline.models.factory import FAMILIES, make_model
from sightline.models.yolo import YoloDetector
from sightline.models.yolo_boxes import decode_predictions
from sightline.models.yolo_metadata import NAMES


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_targets() -> list[Target]:
    """Some boxes, none, and one that is neither object nor background."""
    boxes = torch.tensor([[10.0, 12, 50, 40], [60, 20, 90, 60], [5, 5, 20, 20]])
    return [
        Target(boxes[:2], torch.tensor([0, 2]), torch.tensor([False, False])),
        Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)),
        Target(boxes[1:], torch.tensor([1, 1]), torch.tensor([False, True])),
    ]


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_the_loss_is_that_of_the_package(name: str) -> None:
    from ultralytics.utils.loss import v8DetectionLoss

    model, images = make_lively(name).train(), make_images(3, 96, 96)
    ours = total_loss(model.loss(images, make_targets(), [1, 2, 3]))
    boxes = torch.tensor([[30, 26, 40, 28], [75, 40, 30, 40], [75, 40, 30, 40]]) / 96
    batch = {"batch_idx": torch.tensor([0.0, 0, 2]), "cls": torch.tensor([0.0, 2, 1]), "bboxes": boxes}
    said = model.network(images.float().to(memory_format=torch.channels_last) / 255)
    theirs, _ = v8DetectionLoss(model.network)(said, batch)
    assert ours.item() == pytest.approx(theirs.sum().item() / 3, rel=1e-5)  # Theirs is times the batch.
    assert ours.item() > 0


def test_the_loss_of_a_batch_is_that_of_its_parts() -> None:
    """Which is what lets N workers train as one."""
    model, images, targets = make_lively("yolov8n").double().eval(), make_images(3, 96, 96), make_targets()
    whole = model.loss(images, targets, [1, 2, 3])
    parts = [model.loss(images[place : place + 1], targets[place : place + 1], [1]) for place in range(3)]
    nothing = model.loss(images[:0], [], [])
    for index, term in enumerate(whole):
        totals = sum(part[index].total for part in parts)
        assert term.total.item() == pytest.approx(totals.item(), rel=1e-6)
        assert term.normaliser.item() == pytest.approx(sum(part[index].normaliser.item() for part in parts), rel=1e-6)
        assert nothing[index].total.item() == nothing[index].normaliser.item() == 0
        assert nothing[index].weight == term.weight


def test_every_parameter_gets_a_gradient_from_an_image_without_objects() -> None:
    model = make_lively("yolov8n").train()
    empty = make_targets()[1]
    total_loss(model.loss(make_images(1, 64, 64), [empty], [1])).backward()
    assert not [name for name, own in model.named_parameters() if own.requires_grad and own.grad is None]


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n"])
def test_boxes_are_decoded_as_by_the_package(name: str) -> None:
    from ultralytics.nn.modules.head import Detect

    model, images = make_lively(name), make_images(2, 64, 96)
    with torch.inference_mode():
        said = model.network(images.float() / 255)
        theirs = Detect._inference(model.network.model[-1], said)
        ours = decode_predictions(said["boxes"], said["scores"], height=64, width=96)
    assert ours.shape == (2, 7, 8 * 12 + 4 * 6 + 2 * 3)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_detections_are_boxes_in_the_image() -> None:
    model = make_lively("yolov8n")
    found = model.detect(make_canvases(2, 64, 96))
    assert len(found) == 2
    assert all(len(one.boxes) == len(one.scores) == len(one.labels) > 0 for one in found)
    assert all(0 <= label < 3 for one in found for label in one.labels.tolist())
    assert model.detect(make_canvases(0, 64, 96)) == []
    with pytest.raises(ValueError, match="multiples of 32"):
        model.detect(make_canvases(1, 64, 88))


def test_all_sizes_are_families_under_their_licence() -> None:
    assert len(NAMES) == 10
    assert {FAMILIES[name].licence for name in NAMES} == {"AGPL-3.0"}
    small, medium = (make_model(name, num_classes=2) for name in ("yolo11n", "yolo11s"))
    assert isinstance(small, YoloDetector)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in medium.parameters())
    assert any(name.startswith(small.heads) for name in small.state_dict())


def test_a_network_that_the_package_does_not_have() -> None:
    with pytest.raises(ConfigError, match="has no 'yolov7n'"):
        yolo_package.make_network("yolov7n", 3)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    yolo_package._package.cache_clear()
    monkeypatch.setattr(yolo_package, "is_installed", lambda: False)
    try:
        with pytest.raises(MissingExtraError, match=r"sightline\[yolo\]"):
            make_model("yolov8n", num_classes=2)
    finally:
        yolo_package._package.cache_clear()


def test_the_package_is_kept_to_itself(tmp_path: Path) -> None:
    """It writes no settings, leaves the number of threads alone, and installs and asks for nothing."""
    code = """
import os, socket, torch
torch.set_num_threads(2)
before = dict(os.environ)
def refuse(*_, **__): raise AssertionError("the network was asked for")
socket.getaddrinfo = refuse
socket.socket.connect = refuse
from sightline.models.factory import make_model
make_model("yolov8n", num_classes=2)
changed = {name for name in {*os.environ, *before} if os.environ.get(name) != before.get(name)}
assert all(name.startswith("YOLO_") for name in changed), changed
assert torch.get_num_threads() == 2
"""
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    assert [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()] == []
