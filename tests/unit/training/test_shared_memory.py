"""Sums through shared memory; workers are threads here, `tests/integration/test_many_workers.py` has processes."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from together import Together, run_together
from torch import Tensor

from programs import need_mounts
from sightline.training import shared_memory
from sightline.training.collective import WorkerLostError
from sightline.training.shared_memory import LARGEST, SharedMemory, memory_size, share_memory


def run_on_memory(size: int, work: Callable[[SharedMemory, int], list[Tensor]]) -> list[list[Tensor]]:
    memory = bytearray(memory_size(size))

    def one(rank: int) -> list[Tensor]:
        return work(SharedMemory(memory, rank=rank, size=size, alive=lambda other: True), rank)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_of_many_messages(size: int, dtype: torch.dtype) -> None:
    """Of changing shapes, one right after the other: a place that was written too early would show."""
    shapes = [(1 + number % 7, 1 + number % 300) for number in range(200)]
    given = [
        [(torch.rand(shape, generator=torch.Generator().manual_seed(rank)) * 100).to(dtype) for shape in shapes]
        for rank in range(size)
    ]
    found = run_on_memory(size, lambda shared, rank: [shared.all_reduce(one.clone()) for one in given[rank]])
    for number in range(len(shapes)):
        expected = given[0][number].clone()
        for other in given[1:]:
            expected += other[number]
        for result in found:
            assert torch.equal(result[number], expected)


def test_a_tensor_in_another_order_in_memory() -> None:
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def work(shared: SharedMemory, rank: int) -> list[Tensor]:
        return [shared.all_reduce(images.clone(memory_format=torch.preserve_format))]

    for (found,) in run_on_memory(2, work):
        assert torch.equal(found, images * 2)


@pytest.mark.parametrize(("numbers", "fits"), [(LARGEST // 4, True), (LARGEST // 4 + 1, False)])
def test_only_small_tensors_are_taken(numbers: int, fits: bool) -> None:
    shared = SharedMemory(bytearray(memory_size(1)), rank=0, size=1, alive=lambda other: True)
    assert shared.takes(torch.zeros(numbers)) is fits


def test_a_worker_that_is_gone_is_noticed() -> None:
    shared = SharedMemory(bytearray(memory_size(2)), rank=0, size=2, alive=lambda other: False)
    with pytest.raises(WorkerLostError, match="worker 1 is gone"):
        shared.all_reduce(torch.zeros(1))


def test_workers_of_one_machine_share_and_leave_nothing_behind() -> None:
    before = set(Path("/dev/shm").iterdir())

    def work(collective: Together) -> Tensor:
        shared = share_memory(collective.rank, collective.size, collective.gather)
        assert shared is not None
        return shared.all_reduce(torch.tensor([collective.rank + 1.0]))

    assert run_together(3, work) == [6.0, 6.0, 6.0]
    assert not [place for place in set(Path("/dev/shm").iterdir()) - before if place.name.startswith("sightline-")]


def test_workers_that_do_not_see_the_memory_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two machines: then none of them may use it."""
    real = shared_memory._open_file
    opened: list[str] = []

    def open_once(name: str) -> object:
        opened.append(name)
        return real(name) if len(opened) == 1 else None

    monkeypatch.setattr(shared_memory, "_open_file", open_once)
    found = run_together(2, lambda collective: share_memory(collective.rank, collective.size, collective.gather))
    assert found == [None, None]


def test_a_full_file_system_is_no_reason_to_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file there would end the process by SIGBUS when it is first written to."""
    need_mounts()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        monkeypatch.setattr(shared_memory, "_DIRECTORY", tmp_path)
        assert shared_memory.share_memory(0, 1, lambda value: [value]) is None
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)
