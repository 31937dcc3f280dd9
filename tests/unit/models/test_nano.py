"""The detector as a whole: shapes, gradients, precision, determinism, export."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.models.detector import Target, total_loss
from sightline.models.graph import run_in_torch
from sightline.models.nano import NanoDetector
from sightline.models.nano_boxes import decode_boxes, decode_scores, flatten_map, grid_points
from sightline.models.nano_inference import NanoInference

NUM_CLASSES = 3


def make_model(*, width: int = 16, seed: int = 0) -> NanoDetector:
    torch.manual_seed(seed)
    return NanoDetector(NUM_CLASSES, size=64, width=width)


def make_images(count: int, height: int = 64, width: int = 96) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def canvases(count: int, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    return np.ascontiguousarray(make_images(count, height, width).permute(0, 2, 3, 1).numpy())


def make_target(*boxes: tuple[float, float, float, float], label: int = 1, ignore: bool = False) -> Target:
    return Target(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.full((len(boxes),), label),
        torch.full((len(boxes),), ignore),
    )


TARGETS = [make_target((8, 8, 40, 36)), make_target((50, 20, 70, 50), (4, 4, 20, 60), label=2), make_target()]


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 96), (160, 32)])
def test_maps_have_a_prediction_at_every_eighth_pixel(height: int, width: int) -> None:
    logits, boxes = make_model()(make_images(2, height, width))
    assert logits.shape == (2, 1 + NUM_CLASSES, height // 8, width // 8)
    assert boxes.shape == (2, 4, height // 8, width // 8)


def test_sides_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        make_model().detect(canvases(1, 64, 90))


def test_every_parameter_gets_a_gradient() -> None:
    model = make_model()
    total_loss(model.loss(make_images(3), TARGETS, [0, 0, 0])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    # Blocks begin as the identity: what is inside them learns from the second step on.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.01 * parameter.grad)
    model.zero_grad()
    total_loss(model.loss(make_images(3), TARGETS, [0, 0, 0])).backward()
    idle = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert idle == []


@pytest.mark.parametrize("count", [0, 2])
def test_loss_without_objects_is_finite_and_has_a_gradient(count: int) -> None:
    model = make_model()
    terms = model.loss(make_images(count), [make_target() for _ in range(count)], [0] * count)
    loss = total_loss(terms)
    loss.backward()
    assert torch.isfinite(loss)
    assert (loss > 0) == (count > 0)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_shares_add_up_to_the_whole(cut: int) -> None:
    model = make_model().double().eval()
    images = make_images(3)

    def gradients(parts: list[slice]) -> tuple[float, list[Tensor]]:
        shares = [model.loss(images[part], TARGETS[part], [0] * 3) for part in parts]
        normalisers = [sum(term.normaliser for term in terms) for terms in zip(*shares, strict=True)]
        loss = sum(
            term.weight * term.total / normaliser
            for terms in shares
            for term, normaliser in zip(terms, normalisers, strict=True)
        )
        assert isinstance(loss, Tensor)
        return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))

    whole, expected = gradients([slice(0, 3)])
    parts, found = gradients([slice(0, cut), slice(cut, 3)])
    assert parts == pytest.approx(whole, rel=1e-10)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_the_loss_is_deterministic() -> None:
    losses = [total_loss(make_model().loss(make_images(3), TARGETS, [key] * 3)).item() for key in (1, 2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_detections_keep_to_the_image_and_the_limits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = NanoDetector(NUM_CLASSES, width=16).to(dtype).eval()
    around = NanoInference(min_score=0.0, max_detections=7)
    images = canvases(2).transpose(0, 3, 1, 2)
    found = around.detect(run_in_torch(model.graphs(), model.device), images)
    assert len(found) == 2
    for one in found:
        assert one.boxes.shape == (7, 4)
        assert torch.from_numpy(one.scores).dtype == dtype
        assert (np.diff(one.scores) <= 0).all()
        assert one.labels.dtype == np.int32
        assert (one.boxes >= 0).all()
        assert (one.boxes <= [96, 64, 96, 64]).all()


def test_no_images_give_no_detections() -> None:
    assert make_model().eval().detect(canvases(0)) == []


def test_half_precision_stays_finite() -> None:
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16):
        loss = total_loss(model.loss(make_images(3), TARGETS, [0, 0, 0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_normalisation_can_be_swapped() -> None:
    norms = [module for module in make_model().modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert {type(norm) for norm in norms} == {nn.BatchNorm2d}


def test_the_forward_pass_can_be_exported_for_any_batch() -> None:
    model = make_model().eval()
    dynamic = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    exported = torch.export.export(model, (make_images(2),), dynamic_shapes=dynamic).module()
    images = make_images(3)
    for one, other in zip(exported(images), model(images), strict=True):
        torch.testing.assert_close(one, other)


def test_preprocess_can_be_sent_to_workers() -> None:
    fit = make_model().letterbox
    copy: Callable[..., object] = pickle.loads(pickle.dumps(fit))
    assert copy == fit


def test_boxes_and_scores_are_decoded_as_in_the_loss() -> None:
    """In NumPy for engines, in torch where gradients are needed."""
    model = make_model().eval()
    with torch.no_grad():
        logits, raw = model(make_images(2))
    points = grid_points(*raw.shape[-2:], stride=8, like=raw)
    boxes = decode_boxes(flatten_map(raw), points, stride=8).clamp(min=0)
    boxes = torch.minimum(boxes, torch.tensor([96.0, 64, 96, 64]))
    scores = decode_scores(flatten_map(logits))
    around = NanoInference(min_score=0.0, nms_iou=1.0, max_detections=10_000)
    found = around.detect(lambda name, images: (logits, raw), canvases(2).transpose(0, 3, 1, 2))
    for one, own_boxes, own_scores in zip(found, boxes, scores, strict=True):
        values, order = own_scores.flatten().sort(descending=True)
        assert len(one) == len(values)
        np.testing.assert_allclose(one.scores, values, atol=1e-6)
        np.testing.assert_allclose(one.boxes[:5], own_boxes[order[:5] // NUM_CLASSES], atol=1e-3)
