"""A moving average of the weights, which scores better than the weights themselves."""

import math

import torch
from torch import nn

from sightline.train.checkpoint import Weights


class MovingAverage:
    """Averages a model's weights over about 1 / (1 - decay) steps, fewer at the beginning."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.weights: Weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights after a step."""
        decay = self._decay * (1 - math.exp(-(step + 1) / 100))
        averages, current = [], []
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                averages.append(self.weights[name])
                current.append(tensor)
            else:
                self.weights[name].copy_(tensor)
        torch._foreach_lerp_(averages, current, 1 - decay)
