"""Optimizers, with weight decay where it belongs."""

from typing import Any

import torch
from torch import nn

from sightline.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """SGD or AdamW over what is not frozen; norms and biases are not decayed."""
    assert config.lr is not None, "settings are resolved before training"
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (decayed if parameter.ndim > 1 else plain).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay, "scale": 1.0},
        {"params": plain, "weight_decay": 0.0, "scale": 1.0},
    ]
    match config.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr=config.lr, momentum=0.9, nesterov=True)
        case _:
            return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.99))


def freeze(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Leave out of training whatever parameter's name begins with one of the prefixes."""
    for name, parameter in model.named_parameters():
        if prefixes and name.startswith(prefixes):
            parameter.requires_grad_(False)


def freeze_batchnorm(model: nn.Module) -> None:
    """Let BatchNorm use its statistics rather than the batch's; asked again whenever the model is set to train."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
