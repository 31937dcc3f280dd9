"""One optimisation step: the same numbers however many workers share the batch."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.augment import keyed_generator
from sightline.data.loader import Batch
from sightline.models.detector import Detector, LossTerm, Target
from sightline.structures import Annotation
from sightline.train.collective import Collective

_LOSS_STREAM = 1
"""The stream of random numbers that losses draw from; augmentation has stream 0."""


@dataclass(frozen=True)
class Work:
    """A batch on the model's device."""

    images: Tensor
    targets: list[Target]
    keys: list[int]


def to_device(batch: Batch, *, device: torch.device, seed: int, dtype: torch.dtype) -> Work:
    """Stack the images and turn annotations into tensors; each image gets its own random key."""
    images = torch.from_numpy(np.stack(batch.images)) if batch.images else torch.zeros(0, 32, 32, 3)
    images = images.to(device, non_blocking=True).permute(0, 3, 1, 2)  # Channels last, as the decoder gave them.
    targets = [target_of(annotation, device=device, dtype=dtype) for annotation in batch.annotations]
    keys = [
        int(keyed_generator(seed, batch.epoch, int(position), stream=_LOSS_STREAM).random() * 2**53)
        for position in batch.positions
    ]
    return Work(images, targets, keys)


def target_of(annotation: Annotation, *, device: torch.device, dtype: torch.dtype) -> Target:
    """An annotation as tensors."""
    return Target(
        boxes=torch.tensor(annotation.boxes, dtype=dtype, device=device),
        labels=torch.tensor(annotation.labels, dtype=torch.int64, device=device),
        ignore=torch.tensor(annotation.ignore, dtype=torch.bool, device=device),
        label=annotation.label,
    )


def backward(model: Detector, work: Work, collective: Collective) -> dict[str, float]:
    """Compute the gradients of the whole global batch on every worker; returns the loss and its terms.

    Normalisers are added up over the workers before they divide, gradients after: nothing is averaged, so shares of
    different sizes, and empty ones, weigh what they should.
    """
    terms = model.loss(work.images, work.targets, work.keys)
    normalisers = torch.stack([term.normaliser.detach().double() for term in terms])
    collective.all_reduce(normalisers)
    parts = _divide(terms, normalisers)
    torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
    _add_gradients(model, collective)
    values = torch.stack([part.detach().double() for part in parts])
    collective.all_reduce(values)
    named = {term.name: float(value) for term, value in zip(terms, values, strict=True)}
    return {"loss": sum(named.values()), **named}


def _divide(terms: list[LossTerm], normalisers: Tensor) -> list[Tensor]:
    return [
        term.weight * term.total / normaliser.clamp(min=1e-9).to(term.total.dtype)
        for term, normaliser in zip(terms, normalisers, strict=True)
    ]


def _add_gradients(model: nn.Module, collective: Collective) -> None:
    """Add the workers' gradients in one message."""
    if collective.size == 1:
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    collective.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
