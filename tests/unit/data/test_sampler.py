from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.sampler import Sampler, num_steps, permute, share

sizes = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4097]))
seeds = st.one_of(st.integers(0, 2**70), st.integers(-(2**40), -1))
worlds = st.integers(1, 9)


def order_of(sampler: Sampler, epoch: int, *, world_size: int = 1, start: int = 0) -> list[int]:
    """The images of an epoch as a run of `world_size` ranks sees them, rank after rank in each step."""
    ranks = [list(sampler.shares(epoch, rank=r, world_size=world_size, start=start)) for r in range(world_size)]
    assert {len(shares) for shares in ranks} == {sampler.num_steps(start=start)}
    return [int(i) for step in zip(*ranks, strict=True) for part in step for i in part.indices]


@given(n=sizes, seed=seeds, epoch=st.integers(0, 2**66))
def test_permute_is_a_bijection(n: int, seed: int, epoch: int) -> None:
    found = permute(np.arange(n), n, seed=seed, epoch=epoch)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(n))


@given(n=sizes, seed=seeds, data=st.data())
def test_permute_works_element_by_element(n: int, seed: int, data: st.DataObject) -> None:
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=6)), np.int64)
    whole = permute(np.arange(n), n, seed=seed, epoch=2)
    assert np.array_equal(permute(some, n, seed=seed, epoch=2), whole[some])


def test_permute_reaches_far_without_memory() -> None:
    n = 10**15 + 37
    places = np.array([0, 1, n // 2, n - 1])
    found = permute(places, n, seed=1, epoch=0)
    assert len(set(found.tolist())) == 4
    assert found.min() >= 0
    assert found.max() < n


def test_permute_is_pinned() -> None:
    """Runs of an older version must be able to resume: the order may never change."""
    assert permute(np.arange(8), 8, seed=0, epoch=0).tolist() == [2, 1, 5, 7, 3, 0, 4, 6]
    assert permute(np.arange(3), 10**6, seed=12345, epoch=7).tolist() == [396229, 623905, 545692]


def test_seeds_count_modulo_2_to_the_64() -> None:
    places = np.arange(100)
    assert np.array_equal(permute(places, 100, seed=5, epoch=0), permute(places, 100, seed=5 + 2**64, epoch=0))


@pytest.mark.parametrize("position", [-1, 10])
def test_permute_refuses_positions_outside(position: int) -> None:
    with pytest.raises(ValueError, match="range"):
        permute(np.array([position]), 10, seed=0, epoch=0)


@pytest.mark.parametrize("n", [5, 16, 64])
@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_every_image_is_equally_likely_at_every_position(n: int, vary: str) -> None:
    trials = 400
    counts = np.zeros((n, n))
    for number in range(trials):
        keys = {"seed": 3, "epoch": 1} | {vary: number}
        counts[np.arange(n), permute(np.arange(n), n, **keys)] += 1
    expected = trials / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 8


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1000, 4096, 5000])
def test_order_looks_random(seed: int, n: int) -> None:
    order = permute(np.arange(n), n, seed=seed, epoch=0)
    other = permute(np.arange(n), n, seed=seed, epoch=1)
    limit = 4.5 / np.sqrt(n)
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < limit
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < limit
    assert abs(np.corrcoef(order, other)[0, 1]) < limit
    assert (order == other).sum() < 12
    steps = np.bincount((order[1:] - order[:-1]) % n * 20 // n, minlength=20)
    assert ((steps - n / 20) ** 2 / (n / 20)).sum() < 60


@given(n=st.integers(0, 80), batch=st.integers(1, 30), world=worlds, seed=seeds, epoch=st.integers(0, 5))
def test_every_image_once_in_the_same_order_for_every_world(
    n: int, batch: int, world: int, seed: int, epoch: int
) -> None:
    sampler = Sampler(n, batch, seed)
    order = order_of(sampler, epoch, world_size=world)
    assert sorted(order) == list(range(n))
    assert order == order_of(Sampler(n, 7, seed), epoch)


@given(n=st.integers(1, 80), batches=st.tuples(*[st.integers(1, 30)] * 2), ws=st.tuples(worlds, worlds), data=st.data())
def test_goes_on_from_any_step_with_another_world_and_batch(
    n: int, batches: tuple[int, int], ws: tuple[int, int], data: st.DataObject
) -> None:
    before, after = (Sampler(n, batch, seed=9) for batch in batches)
    start = data.draw(st.integers(0, n))
    steps = data.draw(st.integers(0, before.num_steps(start=start)))
    done = [
        int(i)
        for step in range(steps)
        for rank in range(ws[0])
        for i in before.indices(4, step, rank=rank, world_size=ws[0], start=start)
    ]
    again = before.position_after(steps - 1, start=start) if steps else start
    rest = order_of(after, 4, world_size=ws[1], start=again)
    assert done + rest == order_of(before, 4)[start:]


@given(n=st.integers(1, 60), batch=st.integers(1, 20), world=worlds, data=st.data())
def test_shares_are_the_positions_and_indices_of_each_step(n: int, batch: int, world: int, data: st.DataObject) -> None:
    sampler = Sampler(n, batch, seed=1)
    start, rank = data.draw(st.integers(0, n)), data.draw(st.integers(0, world - 1))
    for step, part in enumerate(sampler.shares(3, rank=rank, world_size=world, start=start)):
        assert (part.epoch, part.step) == (3, step)
        whose = {"rank": rank, "world_size": world, "start": start}
        assert np.array_equal(part.positions, sampler.positions(3, step, **whose))
        assert np.array_equal(part.indices, sampler.indices(3, step, **whose))


def test_shares_cross_the_blocks_in_which_they_are_worked_out() -> None:
    assert sorted(order_of(Sampler(10_000, 3, seed=2), 0, world_size=2)) == list(range(10_000))


@given(total=st.integers(0, 50), world=worlds)
def test_share_is_balanced_and_contiguous(total: int, world: int) -> None:
    cuts = [share(total, rank=rank, world_size=world) for rank in range(world)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == total
    assert all(end == begin for (_, end), (begin, _) in pairwise(cuts))
    lengths = [high - low for low, high in cuts]
    assert max(lengths) - min(lengths) <= 1


def test_without_shuffle_images_come_as_stored() -> None:
    assert order_of(Sampler(20, 6, seed=3, shuffle=False), 5, world_size=3) == list(range(20))


@pytest.mark.parametrize(
    ("n", "batch", "start", "steps"),
    [(0, 4, 0, 0), (8, 4, 0, 2), (9, 4, 0, 3), (9, 4, 1, 2), (9, 4, 9, 0), (3, 9, 2, 1)],
)
def test_num_steps(n: int, batch: int, start: int, steps: int) -> None:
    assert num_steps(n, batch, start=start) == steps


@pytest.mark.parametrize(
    "call",
    [
        lambda: Sampler(-1, 4),
        lambda: Sampler(4, 0),
        lambda: num_steps(4, 2, start=5),
        lambda: num_steps(4, 2, start=-1),
        lambda: share(4, rank=2, world_size=2),
        lambda: Sampler(4, 2).positions(0, 2),
    ],
)
def test_wrong_numbers_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        call()
