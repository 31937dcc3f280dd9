"""One optimisation step: the same numbers however many workers share the batch."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.augment import keyed_generator
from sightline.data.loader import Batch
from sightline.data.sampler import share as share_of
from sightline.models.detector import Detector, LossTerm, Target
from sightline.structures import Annotation
from sightline.training.batchnorm import absent, shares_batchnorm
from sightline.training.collective import Collective
from sightline.training.precision import Precision

_LOSS_STREAM = 1
"""The stream of random numbers that losses draw from; augmentation has stream 0."""

_STAND_IN = 128  # Pixels; large enough for every stride.


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


def backward(
    model: Detector, work: Work, collective: Collective, *, precision: Precision | None = None, parts: int = 1
) -> dict[str, float]:
    """Compute the gradients of the whole global batch on every worker; returns the loss and its terms.

    Normalisers are added up over the workers before they divide, gradients after: nothing is averaged, so shares of
    different sizes, and empty ones, weigh what they should.

    Args:
        parts: How many parts of the share go through the model one after another, each freeing its memory before the
            next. Every term has a normaliser of its own, known only when all parts went through: a first pass without
            gradients counts them, so the gradients are those of the whole, for a forward pass more. BatchNorm that is
            not frozen takes its statistics from each part by itself.
    """
    precision = precision or Precision("float32", work.images.device)
    shares = _split(work, parts)
    buffers = _local_statistics(model, collective)
    normalisers = _count_first(model, shares, precision) if parts > 1 else None
    if normalisers is not None:
        collective.all_reduce(normalisers)
    summed: dict[str, Tensor] = {}
    for share in shares:
        with precision.forward():
            terms = _loss(model, share)
        if normalisers is None:
            normalisers = collective.all_reduce(_normalisers(terms))
        values = _divide(terms, normalisers)
        precision.scale(torch.stack(values).sum()).backward()  # type: ignore[no-untyped-call]
        for term, value in zip(terms, values, strict=True):
            summed[term.name] = summed.get(term.name, 0) + value.detach().double()
    _add_up(model, buffers, collective, has_images=bool(work.keys))
    total = collective.all_reduce(torch.stack(list(summed.values()))).tolist()
    return {"loss": sum(total), **dict(zip(summed, total, strict=True))}


def _split(work: Work, parts: int) -> list[Work]:
    """Parts of nearly equal size; there are always as many, so that workers keep step, but some may be empty."""
    cuts = [slice(*share_of(len(work.keys), rank=number, world_size=parts)) for number in range(parts)]
    return [Work(work.images[cut], work.targets[cut], work.keys[cut]) for cut in cuts]


@torch.no_grad()
def _count_first(model: Detector, shares: list[Work], precision: Precision) -> Tensor:
    """The normalisers of all parts added up, leaving statistics and random numbers as they were."""
    device = shares[0].images.device
    kept = [buffer.clone() for buffer in model.buffers()]
    total = None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for share in shares:
            with precision.forward():
                counted = _normalisers(_loss(model, share))
            total = counted if total is None else total + counted
    for buffer, before in zip(model.buffers(), kept, strict=True):
        buffer.copy_(before)
    assert total is not None
    return total


def _normalisers(terms: list[LossTerm]) -> Tensor:
    # On the device of the losses: some count on the CPU, and workers must all add up in the same place.
    return torch.stack([term.normaliser.detach().to(term.total.device).double() for term in terms])


def _divide(terms: list[LossTerm], normalisers: Tensor) -> list[Tensor]:
    return [
        term.weight * term.total / normaliser.clamp(min=1).to(term.total.dtype)
        for term, normaliser in zip(terms, normalisers, strict=True)
    ]


def _loss(model: Detector, share: Work) -> list[LossTerm]:
    """The terms of a share. Where BatchNorm asks all workers, one without images keeps step with a stand-in."""
    if share.keys or not shares_batchnorm(model):
        return model.loss(share.images, share.targets, share.keys)
    images = torch.full((1, 3, _STAND_IN, _STAND_IN), 127, dtype=torch.uint8, device=share.images.device)
    # With an object, for the mean over the proposals of a picture without any would not be a number.
    box = torch.tensor([[0.25, 0.25, 0.75, 0.75]], device=images.device) * _STAND_IN
    label = torch.zeros(1, dtype=torch.int64, device=images.device)
    target = Target(box, label, label.bool(), label=0)
    with absent(model):
        terms = model.loss(images.contiguous(memory_format=torch.channels_last), [target], [0])
    return [replace(term, total=term.total * 0, normaliser=term.normaliser * 0) for term in terms]


def _local_statistics(model: nn.Module, collective: Collective) -> list[Tensor]:
    """Running statistics that each worker moves by its own share, and that are to stay the same on all of them."""
    if collective.size == 1 or shares_batchnorm(model):
        return []
    return [
        buffer
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d) and module.training
        for buffer in module.buffers(recurse=False)
        if buffer.is_floating_point()
    ]


@torch.no_grad()
def _add_up(model: nn.Module, averaged: list[Tensor], collective: Collective, *, has_images: bool) -> None:
    """Add the workers' gradients, and average their running statistics, in one message.

    A parameter that no worker used keeps no gradient, as with a single worker: an optimizer would otherwise apply
    weight decay and momentum to it.

    Args:
        has_images: Whether this worker has a share of the batch. One without computes zeros, which use no parameter.
    """
    if collective.size == 1:
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = [has_images and parameter.grad is not None for parameter in trained]
    gradients = [_gradient(parameter) for parameter in trained]
    for tensor in averaged:
        tensor.div_(collective.size)
    parts = [_in_memory_order(tensor) for tensor in (*gradients, *averaged)]
    uses = torch.tensor(used, dtype=parts[0].dtype, device=parts[0].device)
    parts.append(uses)
    flat = torch.cat(parts)
    collective.all_reduce(flat)
    torch._foreach_copy_(parts, list(torch.split(flat, [part.numel() for part in parts])))
    if all(used):  # The counts of the others need not be read, which would wait for a GPU.
        return
    for parameter, count in zip(trained, uses.tolist(), strict=True):
        if not count:
            parameter.grad = None


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient, zeros if this worker has none, in the parameter's own memory layout.

    Sums over a gradient, such as its norm, depend on the order in memory to the last bit: it must be the same on all.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.stride() != parameter.stride():
        parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad


def _in_memory_order(tensor: Tensor) -> Tensor:
    """All numbers of a tensor without gaps, as they lie: channels last is not copied into another order and back."""
    return tensor.as_strided((tensor.numel(),), (1,))
