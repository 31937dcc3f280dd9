"""What is found with graphs is what the model itself would find."""

import numpy as np
import pytest
import torch
from lively import make_canvases, make_lively

from families import TESTED, TORCHVISION
from sightline.models.graph import run_in_torch
from sightline.models.inference import Array


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", TORCHVISION)
def test_detections_are_those_of_torchvision(name: str) -> None:
    model, canvases = make_lively(name), make_canvases(2, 64, 96)
    with torch.inference_mode():
        theirs = model.model(torch.from_numpy(canvases).permute(0, 3, 1, 2))  # In the same layout.
    ours = model.detect(canvases)
    again = model.detect(canvases)  # With anchors that were kept.
    other = model.detect(canvases.transpose(0, 2, 1, 3))
    assert sum(len(found.boxes) for found in ours) >= 50
    assert all(np.array_equal(one.boxes, other.boxes) for one, other in zip(ours, again, strict=True))
    assert not np.array_equal(ours[0].boxes, other[0].boxes)
    for one, their in zip(ours, theirs, strict=True):
        assert np.array_equal(one.boxes, their["boxes"].numpy())
        assert np.array_equal(one.scores, their["scores"].numpy())
        assert np.array_equal(one.labels + model.background, their["labels"].numpy())


@pytest.mark.parametrize("name", TESTED)
def test_graphs_give_what_they_name_and_are_all_used(name: str) -> None:
    model, canvases = make_lively(name), make_canvases(2, 64, 96)
    graphs = model.graphs()
    run, used = run_in_torch(graphs, model.device), set()

    def watched(graph: str, *inputs: Array) -> tuple[Array, ...]:
        outputs = run(graph, *inputs)
        assert len(outputs) == len(graphs[graph].outputs)
        assert [torch.as_tensor(value).dtype for value in inputs] == [given.dtype for given in graphs[graph].inputs]
        used.add(graph)
        return outputs

    assert len(model.inference.detect(watched, canvases.transpose(0, 3, 1, 2))) == 2
    assert used == set(graphs)


@pytest.mark.parametrize("name", ["fasterrcnn-mobilenet-320", "ssdlite", "resnet18"])
def test_no_images_give_no_detections(name: str) -> None:
    assert make_lively(name).detect(make_canvases(0, 64, 64)) == []


def test_no_proposals_give_no_detections() -> None:
    model = make_lively("fasterrcnn-mobilenet-320")
    model.model.rpn.score_thresh = 2.0
    found = model.detect(make_canvases(2, 64, 64))
    assert [one.boxes.shape for one in found] == [(0, 4), (0, 4)]
