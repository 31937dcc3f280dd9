"""Index arithmetic against plain loops, and the examples in the docstrings."""

import doctest
import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.metrics.ragged import positions_in_runs, prefix_sums, ranges, run_starts


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6))))
def test_ranges(runs: list[tuple[int, int]]) -> None:
    starts, counts = np.array(runs, np.int64).reshape(-1, 2).T
    assert ranges(starts, counts).tolist() == [start + i for start, count in runs for i in range(count)]


@given(st.lists(st.integers(1, 6)))
def test_runs(counts: list[int]) -> None:
    ids = np.repeat(np.arange(len(counts)), np.array(counts, np.int64))
    assert positions_in_runs(ids).tolist() == [i for count in counts for i in range(count)]
    assert run_starts(ids).tolist() == [sum(counts[:i]) for i in range(len(counts))]
    assert prefix_sums(np.array(counts, np.int64)).tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)]


@pytest.mark.parametrize("module", ["ragged", "rates", "detection", "classification"])
def test_examples_in_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"sightline.metrics.{module}"))
    assert result.attempted
    assert not result.failed
