"""One step: parts of a batch give the gradients of the whole, and fewer bits nearly the same."""

import pytest
import torch
from torch import Tensor

from sightline.models.detector import Detector, Target
from sightline.models.factory import make_model
from sightline.training.collective import SingleProcess
from sightline.training.optimizer import freeze_batchnorm
from sightline.training.precision import Precision, pick_precision
from sightline.training.step import Work, backward

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def work(count: int, *, size: int = 96) -> Work:
    """Images with 0, 1, 2, … objects, so that every part has normalisers of its own."""
    images = torch.randint(0, 255, (count, 3, size, size), dtype=torch.uint8)
    targets = []
    for number in range(count):
        corners = torch.rand(number, 2) * size / 2
        boxes = torch.cat([corners, corners + 8 + torch.rand(number, 2) * size / 3], 1)
        targets.append(Target(boxes, torch.arange(number) % 3, torch.zeros(number, dtype=torch.bool), number % 3))
    return Work(images, targets, list(range(100, 100 + count)))


def gradients(model: Detector, given: Work, **options: object) -> tuple[dict[str, float], list[Tensor]]:
    model.zero_grad()
    losses = backward(model, given, SingleProcess(), **options)  # type: ignore[arg-type]
    return losses, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *((name, 4) for name in ("nano", "ssdlite", "fasterrcnn-mobilenet-320", "fcos", "retinanet", "resnet18")),
        *((name, 7) for name in ("nano", "ssdlite", "resnet18")),
    ],
)
def test_parts_give_the_gradients_of_the_whole(name: str, parts: int) -> None:
    """With BatchNorm frozen, for otherwise each part has statistics of its own. 7 parts of 5 images: some are empty.

    In double precision, where what is left of a difference is a mistake and not the processor's rounding.
    """
    model = make_model(name, num_classes=3, size=96).double().train()
    freeze_batchnorm(model)
    given = work(5)
    whole, expected = gradients(model, given)
    split, found = gradients(model, given, parts=parts)
    assert split == pytest.approx(whole, rel=1e-9)
    assert len(found) == len(expected) == len(list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-8 * other.norm() + 1e-12


def test_averaging_parts_would_be_wrong() -> None:
    """The test above can fail: parts with normalisers of their own, averaged, give other gradients."""
    model = make_model("nano", num_classes=3, size=96).train()
    freeze_batchnorm(model)
    given = work(4)
    _, expected = gradients(model, given)
    halves = [
        gradients(model, Work(given.images[cut], given.targets[cut], given.keys[cut]))[1]
        for cut in (slice(0, 2), slice(2, 4))
    ]
    averaged = [(one + other) / 2 for one, other in zip(*halves, strict=True)]
    assert any((one - other).norm() > 0.05 * other.norm() for one, other in zip(averaged, expected, strict=True))


def test_counting_first_leaves_no_trace() -> None:
    model = make_model("nano", num_classes=3, size=96).train()
    given = work(4)
    state = torch.get_rng_state()
    updates = {name: buffer.clone() for name, buffer in model.named_buffers() if "num_batches" in name}
    gradients(model, given, parts=2)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        if name in updates:
            assert buffer == updates[name] + 2, "each part counts once in BatchNorm's statistics, not twice"


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_fewer_bits_give_nearly_the_same(name: str) -> None:
    model = make_model("nano", num_classes=3, size=96).train()
    given = work(4)
    losses, expected = gradients(model, given)
    precision = Precision(name, CPU)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    less, _ = gradients(model, given, precision=precision)
    precision.unscale(optimizer)
    assert less["loss"] == pytest.approx(losses["loss"], rel=0.05)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    flat = torch.cat([gradient.flatten() for gradient in expected])
    assert torch.cosine_similarity(found, flat, dim=0) > 0.95


@pytest.mark.parametrize(
    ("able", "depthwise", "picked"),
    [
        ({}, False, "float32"),
        ({"avx2": True, "avx512_bf16": False}, False, "float32"),
        ({"avx512_bf16": True}, False, "bfloat16"),
        ({"amx_bf16": True}, False, "bfloat16"),
        ({"avx512_bf16": True}, True, "float32"),
    ],
)
def test_a_cpu_takes_fewer_bits_where_it_gains(
    monkeypatch: pytest.MonkeyPatch, able: dict[str, bool], depthwise: bool, picked: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert pick_precision("auto", CPU, depthwise=depthwise) == picked
    assert pick_precision("bfloat16", CPU, depthwise=depthwise) == "bfloat16"
    assert pick_precision("float32", CPU, depthwise=depthwise) == "float32"


def test_overflow_skips_the_step_and_lowers_the_scale() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    precision = Precision("float16", CPU)
    precision.scale(parameter.sum()).backward()
    parameter.grad = torch.tensor([float("inf"), 1.0])
    precision.unscale(optimizer)
    assert precision.may_overflow
    precision.step(optimizer)
    assert parameter.tolist() == [1, 1]
    again = Precision("float16", CPU)
    again.load_state_dict(precision.state_dict())
    assert again.state_dict()["scale"] == precision.state_dict()["scale"] == 2**15
    assert not Precision("float32", CPU).may_overflow
    assert Precision("float32", CPU).state_dict() == {}
