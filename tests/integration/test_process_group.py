"""Real process groups over gloo: what a transfer costs in memory."""

import resource
import tempfile
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from sightline.training.collective import broadcast_tree
from sightline.training.process_group import joined
from sightline.training.rendezvous import file_store, loopback_environment

MB = 1 << 20
TENSORS, TENSOR_MB = 16, 8


def exchange(rank: int, size: int, store: str, answers: "Queue[tuple[int, float, float]]") -> None:
    """Receive rank 0's weights, and report by how much the peak of this process's memory has grown."""
    import os

    os.environ.update(loopback_environment())
    with joined("gloo", file_store(Path(store), size), rank=rank, size=size) as collective:
        weights = {str(index): torch.full((TENSOR_MB * MB // 4,), float(index)) for index in range(TENSORS)}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        received = broadcast_tree(collective, weights if rank == 0 else None)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        collective.barrier()
    answers.put((rank, grown, float(sum(tensor[-1] for tensor in received.values()))))


def test_handing_over_weights_takes_the_memory_of_the_weights_once() -> None:
    """128 MB took 640 MB more in every process of two, and 1,024 MB in every one of four, as one pickled object."""
    size, context = 3, get_context("spawn")
    answers: Queue[tuple[int, float, float]] = context.Queue()
    with tempfile.TemporaryDirectory() as private:
        given = [(rank, size, f"{private}/store", answers) for rank in range(size)]
        started = [context.Process(target=exchange, args=one) for one in given]
        for process in started:
            process.start()
        told = sorted(answers.get(timeout=120) for _ in started)
        for process in started:
            process.join(30)
    assert [total for _, _, total in told] == [sum(range(TENSORS))] * size
    growth = [grown for _, grown, _ in told]
    assert growth[0] < 4 * TENSOR_MB, "the sender copies no more than one tensor"
    assert max(growth[1:]) < TENSORS * TENSOR_MB + 4 * TENSOR_MB, growth
