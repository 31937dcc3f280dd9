"""Which errors of torch.distributed mean that a worker is gone."""

import re

import pytest
import torch

from sightline.training.collective import WorkerLostError
from sightline.training.process_group import losses_named, means_lost_worker

LOST = [
    "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:35027",
    "[pair.cc:534] Read error [127.0.0.1]:4711: Connection reset by peer",
    "writev [127.0.0.1]:34567: Broken pipe",
    "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "Socket Timeout",
    "NCCL error in: ProcessGroupNCCL.cpp:2, remote process exited or there was a network error, NCCL version 2.27\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "The client socket has failed to connect to [node-1]:29500",
]
WRONG = [
    "NCCL error in: ProcessGroupNCCL.cpp:2, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    "CUDA error: an illegal memory access was encountered",
    "Tensors must be contiguous",
    "op.preamble.length <= op.nbytes. 8 vs 4",
    "Expected all tensors to be on the same device",
]


@pytest.mark.parametrize("text", LOST)
def test_a_lost_worker(text: str) -> None:
    with pytest.raises(WorkerLostError), losses_named():
        raise RuntimeError(text)


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_of_this_worker_stays_what_it_is(text: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(text)), losses_named():
        raise RuntimeError(text)


def test_a_full_gpu_is_no_lost_worker() -> None:
    assert not means_lost_worker(torch.OutOfMemoryError("CUDA out of memory: connection"))
