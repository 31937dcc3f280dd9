"""BatchNorm over the whole global batch, however many workers share it; torch's own works on GPUs only.

Statistics are combined in double precision from each worker's mean and variance, so that they do not suffer from
subtracting large numbers. A worker without images takes part with a count of zero.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.training.collective import Collective

_ops = torch.ops.aten


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d whose batch is that of all workers together.

    Attributes:
        collective: The workers; set by `share_batchnorm`.
        absent: Whether this worker's images are only there to keep step, and count for nothing.
    """

    collective: Collective
    absent: bool = False

    def forward(self, features: Tensor) -> Tensor:
        """B x C x h x w to the same."""
        single = features.numel() == features.shape[1]  # Of one value a channel, BatchNorm2d refuses to learn.
        if not self.training or (self.collective.size == 1 and not single):
            return super().forward(features)
        normalised, mean, variance, count = _Normalise.apply(
            features, self.weight, self.bias, self.eps, self.collective, self.absent
        )
        self._remember(mean, variance, count)
        return normalised  # type: ignore[no-any-return]

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics towards those of the batch, as BatchNorm2d does."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.momentum is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        unbiased = variance * count / (count - 1).clamp(min=1)
        share = self.momentum * (count > 0).to(self.running_mean.dtype)  # Where no worker had anything, nothing moves.
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def share_batchnorm(model: nn.Module, collective: Collective) -> None:
    """Let every BatchNorm2d of a model see the global batch; names and weights stay as they are."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = GlobalBatchNorm2d  # In place: other modules and optimizers hold on to this very object.
            module.collective = collective  # type: ignore[assignment]


def shares_batchnorm(model: nn.Module) -> bool:
    """Whether any BatchNorm of a model, as it is set to train now, asks other workers."""
    return any(
        isinstance(module, GlobalBatchNorm2d) and module.training and module.collective.size > 1
        for module in model.modules()
    )


@contextmanager
def absent(model: nn.Module) -> Iterator[None]:
    """While this lasts, images that go through the model count for nothing in the statistics."""
    shared = [module for module in model.modules() if isinstance(module, GlobalBatchNorm2d)]
    for module in shared:
        module.absent = True
    try:
        yield
    finally:
        for module in shared:
            module.absent = False


class _Normalise(torch.autograd.Function):
    """Normalise by the mean and variance over all workers; the gradient goes through those of all, too."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, eps: float, collective: Collective, absent: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _global_statistics(features, collective, absent)
        own = torch.promote_types(features.dtype, torch.float32)
        mean_, variance_ = mean.to(own), variance.to(own)
        ctx.save_for_backward(features, weight, mean_, variance_, count)
        ctx.eps, ctx.collective, ctx.absent = eps, collective, absent
        normalised = torch.batch_norm(features, weight, bias, mean_, variance_, False, 0.0, eps, False)
        ctx.mark_non_differentiable(mean, variance, count)
        return normalised, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        features, weight, mean, variance, count = ctx.saved_tensors
        inverse = (variance + ctx.eps).rsqrt()
        # As if the statistics were constants; the sums are over this worker's images.
        direct, own_weight, own_bias = _ops.native_batch_norm_backward(
            gradient, features, weight, mean, variance, mean, inverse, False, ctx.eps, [True, True, True]
        )
        sums = ctx.collective.all_reduce(torch.stack([own_weight, own_bias]).double())
        with_weight, with_bias = sums / count.clamp(min=1)
        if ctx.absent:  # Its outputs count for nothing, so these sums are zero, and it is not in the statistics.
            return direct, own_weight, own_bias, None, None, None
        # What an image adds to the statistics, all outputs feel: gradients of x by way of variance and mean, which are
        # the normalised features times one number a channel plus another. The kernel that normalises does just that.
        scale = -(weight * inverse).double()
        slope, offset = ((scale * mean_gradient).to(mean.dtype) for mean_gradient in (with_weight, with_bias))
        through = torch.batch_norm(features, slope, offset, mean, variance, False, 0.0, ctx.eps, False)
        return direct.add_(through), own_weight, own_bias, None, None, None


def _global_statistics(features: Tensor, collective: Collective, absent: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (biased) of each channel over all workers, and over how many values; double precision."""
    precise = torch.promote_types(features.dtype, torch.float32)
    still = torch.zeros(features.shape[1], dtype=precise, device=features.device)
    # BatchNorm's own kernel, with running statistics that a momentum of 0 leaves alone: on a CPU sixteen times as quick
    # as `var_mean`.
    mean, variance = (own.double() for own in torch.batch_norm_update_stats(features, still, still.clone(), 0.0))
    count = features.numel() // features.shape[1] * (not absent)
    if not count:  # Of no values the mean is not a number.
        mean, variance = torch.zeros_like(mean), torch.zeros_like(variance)
    sums = torch.stack([mean * count, (variance + mean * mean) * count, torch.full_like(mean, count)])
    total, squares, counts = collective.all_reduce(sums)
    mean = total / counts.clamp(min=1)
    return mean, (squares / counts.clamp(min=1) - mean * mean).clamp(min=0), counts
