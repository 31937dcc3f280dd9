"""BatchNorm folded into the convolution before it: in inference both are one linear function."""

from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fuse_batchnorm(model: nn.Module) -> int:
    """Fold every BatchNorm that follows its convolution, in place; returns how many.

    Modules say nothing of their order of use. In all families here, a BatchNorm registered right after a convolution
    with as many channels is what its outputs go through; a test compares the results of every family.
    """
    fused = 0
    for parent in model.modules():
        for (first, before), (second, after) in pairwise(list(parent.named_children())):
            if _fit(before, after):
                assert isinstance(before, nn.Conv2d)
                assert isinstance(after, nn.BatchNorm2d)
                setattr(parent, first, fuse_conv_bn_eval(before, after))
                setattr(parent, second, nn.Identity())
                fused += 1
    return fused


def _fit(before: nn.Module, after: nn.Module) -> bool:
    return (
        isinstance(before, nn.Conv2d)
        and isinstance(after, nn.BatchNorm2d)
        and before.out_channels == after.num_features
    )
