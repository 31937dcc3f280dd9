import numpy as np
import pytest

from sightline.report.histogram import count_histogram, log_histogram, quantiles


@pytest.mark.parametrize("values", [[32.0], [31.999, 32.0, 64.0], [0.001, 1e9], [5, 5, 5, 700]])
def test_every_value_is_counted_once(values: list[float]) -> None:
    histogram = log_histogram(np.array(values), base=2, steps=2, low=0.5, high=2**16)
    assert sum(histogram.counts) == len(values)
    assert len(histogram.edges) == len(histogram.counts) + 1


def test_an_edge_belongs_to_the_bin_above_it() -> None:
    histogram = log_histogram(np.array([16.0, 32.0, 4096.0]), base=2, steps=1, low=1, high=2**16)
    assert dict(zip(histogram.edges, histogram.counts, strict=False))[32.0] == 1


def test_nothing_gives_an_empty_histogram() -> None:
    assert log_histogram(np.zeros(0), base=2, steps=2, low=1, high=2).counts == ()
    assert count_histogram(np.zeros(0, np.int64)).counts == ()
    assert quantiles(np.zeros(0)) is None


def test_far_counts_get_doubling_bins() -> None:
    near = count_histogram(np.array([0, 3]))
    assert near.edges == (0, 1, 2, 3, 4)
    assert near.counts == (1, 0, 0, 1)
    far = count_histogram(np.array([0, 1, 2, 3, 1000]))
    assert far.edges[:5] == (0, 1, 2, 4, 8)
    assert far.counts[:3] == (1, 1, 2)
    assert far.counts[-1] == 1
