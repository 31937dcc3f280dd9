"""BatchNorm over the whole batch: the same as BatchNorm2d of one worker, forwards and backwards."""

import copy

import pytest
import torch
from together import Together, run_together
from torch import Tensor, nn

from sightline.training.batchnorm import absent, share_batchnorm, shares_batchnorm

IMAGES = torch.randn(5, 3, 9, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 100


def make_net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4, momentum=0.03)
    return nn.Sequential(*layers).double().train()


def learn(net: nn.Module, images: Tensor) -> Tensor:
    """Gradients of a loss that is a sum over images."""
    net(images).sin().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


def test_nothing_anywhere_moves_nothing() -> None:
    """As where a small batch is accumulated in more parts than it has images."""
    fresh = make_net()

    def work(collective: Together) -> dict[str, Tensor]:
        net = copy.deepcopy(fresh)
        share_batchnorm(net, collective)
        with absent(net):
            (net(IMAGES[:1]).sum() * 0).backward()
        assert all(not parameter.grad.any() for parameter in net.parameters() if parameter.grad is not None)
        return net.state_dict()

    for state in run_together(2, work):
        for name, tensor in fresh.state_dict().items():
            assert "num_batches" in name or torch.equal(state[name], tensor), name


@pytest.mark.parametrize("sizes", [[5], [2, 3], [1, 4], [1, 1, 3], [0, 5], [5, 0, 0]], ids=str)
def test_the_same_as_one_worker_with_the_whole_batch(sizes: list[int]) -> None:
    alone, fresh = make_net(), make_net()
    expected = learn(alone, IMAGES)
    shares = IMAGES.split(sizes)

    def work(collective: Together) -> tuple[Tensor, dict[str, Tensor]]:
        net = copy.deepcopy(fresh)
        share_batchnorm(net, collective)
        share = shares[collective.rank]
        if len(share):
            return learn(net, share), net.state_dict()
        with absent(net):
            (net(IMAGES[:1] * 5).sum() * 0).backward()
        found = torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])
        assert not found.any(), "a stand-in has no say"
        return found, net.state_dict()

    results = run_together(len(sizes), work)
    torch.testing.assert_close(
        torch.stack([gradient for gradient, _ in results]).sum(0), expected, rtol=1e-9, atol=1e-9
    )
    for _, state in results:
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-12, atol=1e-12)


def test_statistics_of_large_numbers_do_not_cancel() -> None:
    """A mean of 1e4, a deviation of 0.1: in float32, the mean square less the squared mean would be anything."""
    torch.manual_seed(0)
    values = (1e4 + 1e-1 * torch.randn(4, 1, 16, 16, dtype=torch.float64)).float()

    def work(collective: Together) -> Tensor:
        net = nn.Sequential(nn.BatchNorm2d(1)).train()
        share_batchnorm(net, collective)
        found: Tensor = net(values[collective.rank * 2 :][:2])
        return found.detach()

    found = torch.cat(run_together(2, work)).double()
    exact = (values.double() - values.double().mean()) / values.double().std(correction=0)
    assert (found - exact).abs().max() < 0.05


def test_names_and_evaluation_stay_as_they_were() -> None:
    net = make_net()
    names, before = list(net.state_dict()), net.eval()(IMAGES)
    run_together(2, lambda collective: share_batchnorm(net, collective))
    assert list(net.state_dict()) == names
    assert torch.equal(net(IMAGES), before)
    assert not shares_batchnorm(net), "nobody is asked while the model is scored"
    assert shares_batchnorm(net.train())
