"""`sightline train` in a process of its own, on either launcher, watched through what it prints and leaves."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ray_nodes import RayCluster, processes

from sightline.training.checkpoint import CheckpointDirectory

EPOCHS = 8
TIMEOUT_S = 300
FAULTS = Path(__file__).parent / "faults"


class Command:
    """The real command; `cluster` puts its workers on Ray, else they are subprocesses of the command."""

    def __init__(self, workspace: Path, name: str, *options: str, cluster: RayCluster | None = None) -> None:
        self.run, self._cluster = workspace / "runs" / name, cluster
        settings = ("train.size=64", "train.precision=float32", "train.checkpoint_every_s=0.5", "augment.scale=0.2")
        flags = ["--workspace", str(workspace), "--name", name, "--epochs", str(EPOCHS), "--batch", "4", "--no-track"]
        flags += [text for setting in (*settings, "train.threads=1") for text in ("--set", setting)]
        flags += ["--address", cluster.address] if cluster else []
        self.command = [sys.executable, "-m", "sightline", "train", "shapes", "--model", "nano", *flags, *options]
        self.process: subprocess.Popen[str] | None = None

    def start(self, **environment: str) -> "Command":
        self.found = self.checkpoints()
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        return self

    def checkpoints(self) -> set[str]:
        return {place.name for place in (self.run / "checkpoints").glob("step-*")}

    def workers(self) -> list[int]:
        """Process ids; by rank, unless they are on Ray."""
        if self._cluster:
            return self._cluster.workers()
        return sorted(pid for pid, _, command in processes() if "local_worker" in command and str(self.run) in command)

    def wait_for(self, reached: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not reached():
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, "it never came"
            time.sleep(0.02)

    def wait_for_checkpoint(self) -> None:
        """One that this process has saved."""
        self.wait_for(lambda: self.checkpoints() - self.found)

    def wait_until_workers_are_gone(self) -> None:
        deadline = time.monotonic() + 30
        while self.workers() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not self.workers()

    def output(self) -> str:
        assert self.process is not None
        return self.process.communicate(timeout=TIMEOUT_S)[0]

    def finish(self) -> str:
        text = self.output()
        assert self.process is not None
        assert self.process.returncode == 0, text
        return text

    def fail(self) -> str:
        """Wait for an end that is the user's to mend; what was said."""
        text = self.output()
        assert self.process is not None
        assert self.process.returncode == 3, text
        return text

    def weights(self) -> dict[str, torch.Tensor]:
        found = CheckpointDirectory(self.run / "checkpoints").load_latest()
        assert found is not None
        assert found.progress["epoch"] == EPOCHS
        assert found.ema is not None
        return {**found.weights, **{f"ema {name}": tensor for name, tensor in found.ema.items()}}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The length of the difference of all weights and statistics, as a share of their own."""
    names = [name for name, tensor in one.items() if tensor.is_floating_point()]
    first, second = (torch.cat([weights[name].flatten().double() for name in names]) for weights in (one, other))
    return float((first - second).norm() / second.norm())
