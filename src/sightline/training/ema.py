"""A moving average of the weights, which scores better than the weights themselves."""

import math

import torch
from torch import nn

from sightline.models.weights import Weights


class MovingAverage:
    """Averages a model's weights over about 1 / (1 - decay) steps, fewer at the beginning."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        current = model.state_dict()  # The model's own memory, into which steps write and checkpoints are loaded.
        self.weights: Weights = {name: tensor.detach().clone() for name, tensor in current.items()}
        self._decay = decay
        averaged = [name for name, tensor in current.items() if tensor.is_floating_point()]
        self._averages = [self.weights[name] for name in averaged]
        self._current = [current[name] for name in averaged]
        self._counters = [(self.weights[name], current[name]) for name in current.keys() - set(averaged)]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the model's weights after a step."""
        decay = self._decay * (1 - math.exp(-(step + 1) / 100))
        torch._foreach_lerp_(self._averages, self._current, 1 - decay)
        for average, counter in self._counters:
            average.copy_(counter)
