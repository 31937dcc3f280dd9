"""What workers exchange arrives as it was sent, to the bit and to the layout, and nothing else is accepted."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from together import Together, run_together

from sightline.training.collective import SingleProcess, broadcast_tree
from sightline.training.wire import join_tree, send_tree, split_tree

PLAIN = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


def sent(value: Any) -> Any:
    """What a second worker gets, over a channel that carries one tensor after another."""
    channel: list[torch.Tensor] = []

    def put(tensor: torch.Tensor) -> torch.Tensor:
        channel.append(tensor.clone())
        return tensor

    send_tree(value, sends=True, broadcast=put)
    assert all(tensor.dtype in (torch.uint8, torch.int64) for tensor in channel)
    received = send_tree(None, sends=False, broadcast=lambda tensor: tensor.copy_(channel.pop(0)))
    assert not channel, "everything was taken"
    return received


@given(TREES)
def test_plain_data(tree: Any) -> None:
    received = sent(tree)
    assert received == tree
    assert type(received) is type(tree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4, 5)])
def test_tensors_of_every_type(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 5).to(dtype)
    (received,) = sent([tensor])
    assert received.dtype == dtype
    assert torch.equal(received, tensor)


def test_the_layout_is_kept() -> None:
    """An optimizer's state must lie as its parameter does: other strides are rounded differently."""
    channels_last = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    received = sent({"state": {0: {"exp_avg": channels_last, "step": torch.tensor(3.0)}}})
    assert received["state"][0]["exp_avg"].stride() == channels_last.stride()
    assert torch.equal(received["state"][0]["exp_avg"], channels_last)


def test_a_view_with_gaps_is_copied() -> None:
    every_second = torch.arange(20.0)[::2]
    (received,) = sent([every_second])
    assert torch.equal(received, every_second)
    assert received.is_contiguous()


def test_arrays_and_numbers_that_are_not_finite() -> None:
    received = sent({"keys": np.arange(6).reshape(2, 3), "score": math.inf})
    assert isinstance(received["keys"], np.ndarray)
    assert received["keys"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert received["score"] == math.inf


@pytest.mark.parametrize("value", [Path("/etc/passwd"), object(), print, b"bytes", {1, 2}])
def test_objects_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="plain data and arrays"):
        split_tree({"inner": [value]})


def test_a_structure_of_somebody_else_builds_nothing() -> None:
    with pytest.raises(ValueError, match="which is not known"):
        join_tree({"object": "os.system"}, [])


def test_rank_0_hands_a_tree_to_all() -> None:
    tree = {"weights": torch.arange(5.0), "progress": {"step": 7}}

    def work(collective: Together) -> Any:
        return broadcast_tree(collective, tree if collective.rank == 0 else None)

    for received in run_together(3, work):
        assert torch.equal(received["weights"], tree["weights"])
        assert received["progress"] == {"step": 7}
    assert broadcast_tree(SingleProcess(), tree) is tree
