"""Learning rate as a function of the step."""

import math

from sightline.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """The rate at a global step: a linear warm-up, then constant steps or half a cosine down to a hundredth."""
    assert config.lr is not None, "settings are resolved before training"
    warmup = round(config.warmup * num_steps)
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(num_steps - warmup, 1)
    match config.schedule:
        case "constant":
            return config.lr
        case "cosine":
            return config.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
        case "step":
            return config.lr * 0.1 ** sum(done >= mark for mark in (2 / 3, 8 / 9))
