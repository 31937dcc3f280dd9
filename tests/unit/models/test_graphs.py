"""What is found with graphs is what the model itself would find."""

import pytest
import torch
from lively import make_images, make_lively
from torch import Tensor

from families import TESTED, TORCHVISION
from sightline.models.graph import run_in_torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", TORCHVISION)
def test_detections_are_those_of_torchvision(name: str) -> None:
    model, images = make_lively(name), make_images(2, 64, 96)
    with torch.inference_mode():
        ours, theirs = model.detect(images), model.model(images)
        again = model.detect(images)  # With anchors that were kept.
        other = model.detect(images.transpose(2, 3))
    assert sum(len(found.boxes) for found in ours) >= 50
    assert all(torch.equal(one.boxes, other.boxes) for one, other in zip(ours, again, strict=True))
    assert not torch.equal(ours[0].boxes, other[0].boxes)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.boxes, other["boxes"])
        assert torch.equal(one.scores, other["scores"])
        assert torch.equal(one.labels + model.background, other["labels"])


@pytest.mark.parametrize("name", TESTED)
def test_graphs_give_what_they_name_and_are_all_used(name: str) -> None:
    model, images = make_lively(name), make_images(2, 64, 96)
    graphs = model.graphs()
    run, used = run_in_torch(graphs), set()

    def watched(graph: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = run(graph, *tensors)
        assert len(outputs) == len(graphs[graph].outputs)
        assert [tensor.dtype for tensor in tensors] == [given.dtype for given in graphs[graph].inputs]
        used.add(graph)
        return outputs

    with torch.inference_mode():
        assert len(model.detect_with(watched, images)) == 2
    assert used == set(graphs)


@pytest.mark.parametrize("name", ["fasterrcnn-mobilenet-320", "ssdlite", "resnet18"])
def test_no_images_give_no_detections(name: str) -> None:
    assert make_lively(name).detect(make_images(0, 64, 64)) == []


def test_no_proposals_give_no_detections() -> None:
    model = make_lively("fasterrcnn-mobilenet-320")
    model.model.rpn.score_thresh = 2.0
    with torch.inference_mode():
        found = model.detect(make_images(2, 64, 64))
    assert [one.boxes.shape for one in found] == [(0, 4), (0, 4)]
