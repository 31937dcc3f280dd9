"""Quick RoIAlign gives torchvision's numbers, and its gradients."""

from collections import OrderedDict

import pytest
import torch
from torchvision.ops import MultiScaleRoIAlign

from sightline.models.roi_align import QuickRoIAlign

SIDE = 128


def boxes(count: int) -> torch.Tensor:
    """Of all sizes; some thinner than a pixel of the map, some over the edges of the image."""
    corners = torch.rand(count, 2) * SIDE * 1.1 - 10
    return torch.cat([corners, corners + torch.rand(count, 2) ** 3 * SIDE], 1)


@pytest.mark.parametrize("strides", [(4, 8, 16), (32,), (32, 32)])
@pytest.mark.parametrize("counts", [(40, 0, 25), (3,), (0,)])
@pytest.mark.parametrize("sampling", [1, 2, 3])
def test_numbers_and_gradients_are_torchvisions(
    strides: tuple[int, ...], counts: tuple[int, ...], sampling: int
) -> None:
    torch.manual_seed(0)
    theirs = MultiScaleRoIAlign([str(number) for number in range(len(strides))], (7, 5), sampling)
    ours = QuickRoIAlign.like(theirs).train()
    maps = OrderedDict(
        (str(number), torch.randn(len(counts), 8, SIDE // stride, SIDE // stride, dtype=torch.float64))
        for number, stride in enumerate(strides)
    )
    maps["pool"] = torch.randn(len(counts), 8, 2, 2, dtype=torch.float64)
    found = [boxes(count).double() for count in counts]
    results = []
    for module in (theirs, ours):
        leaves = OrderedDict((name, features.clone().requires_grad_()) for name, features in maps.items())
        out = module(leaves, found, [(SIDE, SIDE)] * len(counts))
        (out * torch.arange(out.numel()).view(out.shape).sin()).sum().backward()
        results.append((out, [features.grad for name, features in leaves.items() if name != "pool"]))
    (expected, gradients), (out, own) = results
    assert out.shape == expected.shape == (sum(counts), 8, 7, 5)
    torch.testing.assert_close(out, expected)
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_without_gradients_to_compute_it_is_torchvisions_own() -> None:
    theirs = MultiScaleRoIAlign(["0"], 7, 2)
    ours = QuickRoIAlign.like(theirs).eval()
    maps, found = OrderedDict({"0": torch.randn(1, 4, 16, 16)}), [boxes(5)]
    assert torch.equal(ours(maps, found, [(SIDE, SIDE)]), theirs(maps, found, [(SIDE, SIDE)]))
