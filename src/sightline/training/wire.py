"""How values travel between workers: the structure as JSON, arrays as their bytes; never pickle.

A value is a tree of dictionaries, lists, tuples, strings, numbers, None, tensors and NumPy arrays. Nothing that arrives
can run code, whoever sent it, and an array is sent by itself, so that no message is larger than the largest array.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Broadcast = Callable[[Tensor], Tensor]
"""Overwrites a tensor, in place, with that of the sender."""


def send_tree(value: Any, *, sends: bool, broadcast: Broadcast) -> Any:
    """The sender's value, on every worker.

    Args:
        value: What to send; ignored on all workers but the sender.
        sends: Whether this worker is the sender.
        broadcast: Overwrites a CPU tensor of bytes with the sender's; called on every worker, in the same order.
    """
    if not sends:
        return _receive(broadcast)
    structure, arrays = split_tree(value)
    arrays = [_dense(array.detach().cpu()) for array in arrays]
    kinds = [[str(array.dtype).removeprefix("torch."), list(array.shape), list(array.stride())] for array in arrays]
    header = torch.frombuffer(bytearray(json.dumps([structure, kinds]).encode()), dtype=torch.uint8)
    broadcast(torch.tensor([len(header)]))
    broadcast(header)
    for array in arrays:
        if array.numel():
            broadcast(_as_bytes(array))
    return value


def _receive(broadcast: Broadcast) -> Any:
    length = int(broadcast(torch.zeros(1, dtype=torch.int64)))
    header = broadcast(torch.empty(length, dtype=torch.uint8))
    structure, kinds = json.loads(header.numpy().tobytes())
    arrays = []
    for dtype, shape, stride in kinds:
        array = torch.empty_strided(shape, stride, dtype=_dtype(dtype))
        if array.numel():
            broadcast(_as_bytes(array))
        arrays.append(array)
    return join_tree(structure, arrays)


def split_tree(value: Any) -> tuple[Any, list[Tensor]]:
    """A tree as JSON takes it, and its arrays, to which it refers by their position.

    Raises:
        TypeError: Something in it is neither an array nor plain data.
    """
    arrays: list[Tensor] = []
    return _split(value, arrays), arrays


def _split(value: Any, arrays: list[Tensor]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            arrays.append(value)
            return {"tensor": len(arrays) - 1}
        case np.ndarray():
            arrays.append(torch.from_numpy(np.array(value)))  # A copy: torch refuses to share what is read-only.
            return {"array": len(arrays) - 1}
        case list():
            return [_split(item, arrays) for item in value]
        case tuple():
            return {"tuple": [_split(item, arrays) for item in value]}
        case dict():  # As pairs: keys of JSON are strings, those of an optimizer's state are numbers.
            return {"dict": [[_split(key, arrays), _split(item, arrays)] for key, item in value.items()]}
    raise TypeError(f"workers exchange plain data and arrays, not {type(value).__name__}")


def join_tree(structure: Any, arrays: list[Tensor]) -> Any:
    """The tree of which `split_tree` made the parts."""
    if isinstance(structure, list):
        return [join_tree(item, arrays) for item in structure]
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    match kind:
        case "tensor":
            return arrays[content]
        case "array":
            return arrays[content].numpy()
        case "tuple":
            return tuple(join_tree(item, arrays) for item in content)
        case "dict":
            return {join_tree(key, arrays): join_tree(item, arrays) for key, item in content}
    raise ValueError(f"a worker sent {kind!r}, which is not known")


def _dense(array: Tensor) -> Tensor:
    """The array itself if it lies in memory without gaps, in whatever order of its dimensions; else a copy that does.

    The order is kept: an optimizer rounds differently where its state does not lie as the parameter does.
    """
    lies_dense = torch.empty_like(array, device="meta").stride() == array.stride()
    return array if lies_dense else array.contiguous()


def _as_bytes(array: Tensor) -> Tensor:
    """The memory of a dense array; every backend can send bytes, not every type."""
    return array.as_strided((array.numel(),), (1,)).view(torch.uint8)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a type of tensors")
    return dtype
