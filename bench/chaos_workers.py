"""Kill the workers, the driver and a node of real training runs, on both launchers. Run by `make chaos`.

The real command trains `nano` on two workers, with augmentation and a moving average. Again and again, a random moment
after it has come further, a worker chosen at random or the driver is killed with SIGKILL; on Ray, one of the three
nodes of a cluster on this machine as well. After the driver's end the same command is typed again. Whenever the run
reaches its end, its weights must be those of a run that was never disturbed, bit for bit.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from harness import command, load_text, machine, markdown_table, write_page

import sightline
from sightline.models.weights import Weights
from sightline.training.checkpoint import CheckpointDirectory

EPOCHS = 30
TIMEOUT_S = 300
WORKERS = {"local": "sightline.training.local_worker", "ray": "ray::RayTrainWorker"}


class Loss(Exception):
    """A promise was broken."""


@dataclass
class Kill:
    """One disturbance: what was killed, at which saved step, and how long until the next checkpoint."""

    victim: str
    step: int
    recovery_s: float


@dataclass
class Cluster:
    """Three Ray nodes on this machine, or none."""

    launcher: str
    nodes: list[Any] = field(default_factory=list)
    cluster: Any = None

    def __enter__(self) -> "Cluster":
        if self.launcher == "ray":
            from ray.cluster_utils import Cluster as RayCluster

            self.cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
            self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(3)]
        return self

    def __exit__(self, *_: object) -> None:
        if self.cluster:
            self.cluster.shutdown()

    @property
    def options(self) -> list[str]:
        """How the command is told."""
        return ["--address", self.cluster.address] if self.cluster else []

    def kill_node(self, dice: random.Random) -> None:
        """End a node at once, and bring up another in its place."""
        node = self.nodes.pop(dice.randrange(len(self.nodes)))
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


class Run:
    """A training run by the real command."""

    def __init__(self, workspace: Path, name: str, launcher: str, options: list[str], *, workers: int = 2) -> None:
        self.directory, self.launcher = workspace / "runs" / name, launcher
        settings = ("train.size=64", "train.threads=1", "train.checkpoint_every_s=1", "augment.scale=0.2")
        flags = ["-w", str(workspace), "--name", name, "--epochs", str(EPOCHS), "--batch", "4"]
        flags += ["--workers", str(workers)]
        flags += ["--verify", *(text for setting in settings for text in ("--set", setting)), *options]
        self._command = [sys.executable, "-m", "sightline", "train", "shapes", "--model", "nano", *flags]
        self._log = workspace / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Type the command."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def step(self) -> int:
        """The newest saved step."""
        places = sorted((self.directory / "checkpoints").glob("step-*"))
        return int(places[-1].name.split("-")[1].split(".")[0]) if places else 0

    def goes_beyond(self, step: int) -> bool:
        """Wait for a checkpoint of a later step; false if the run ended first."""
        assert self.process is not None
        deadline = time.monotonic() + TIMEOUT_S
        while self.step() <= step:
            if self.process.poll() is not None:
                self.check_exit()
                return False
            if time.monotonic() > deadline:
                raise Loss(f"no checkpoint after step {step} in {TIMEOUT_S} s: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)
        return True

    def kill(self) -> None:
        """End the driver; its workers end with it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def verified_epochs(self) -> set[int]:
        """Epochs of which all workers had the same weights, and every image was seen exactly once."""
        return {int(epoch) for epoch in re.findall(r"verified epoch (\d+):", self._log.read_text())}

    def check_exit(self) -> None:
        """Raise unless the command ended well."""
        assert self.process is not None
        if self.process.wait():
            raise Loss(f"the command failed with {self.process.returncode}: {self._log.read_text()[-2000:]}")

    def workers(self) -> list[int]:
        """Process ids."""
        listing = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [int(line.split()[0]) for line in listing.splitlines() if WORKERS[self.launcher] in line]

    def weights(self) -> Weights:
        """Weights, moving average and optimizer at the end."""
        found = CheckpointDirectory(self.directory / "checkpoints").load_latest()
        if found is None or found.ema is None or found.progress["epoch"] != EPOCHS:
            raise Loss("a run ended without its last checkpoint")
        tensors = {**found.weights, **{f"ema {name}": tensor for name, tensor in found.ema.items()}}
        for number, state in found.optimizer["state"].items():
            tensors |= {f"optimizer {number} {name}": value for name, value in state.items()}
        return tensors


def disturb(run: Run, cluster: Cluster, victim: str, dice: random.Random) -> None:
    """Kill somebody; a driver's command is typed again."""
    if victim == "node":
        cluster.kill_node(dice)
    elif victim == "driver":
        run.kill()
        run.start()
    elif pids := run.workers():
        os.kill(dice.choice(pids), signal.SIGKILL)


def victims_of(launcher: str, kills: int, dice: random.Random) -> list[str]:
    """Who is killed, in a random order: the driver every fourth time, and on Ray one node."""
    drivers = kills // 4
    victims = ["driver"] * drivers + ["worker"] * (kills - drivers) + ["node"] * (launcher == "ray")
    dice.shuffle(victims)
    return victims


def chaos(launcher: str, kills: int, seed: int, workspace: Path) -> tuple[list[Kill], int, int]:
    """All kills on one launcher; also how often the run ended, and how many tensors were compared each time."""
    dice = random.Random(f"{launcher} {seed}")
    done: list[Kill] = []
    ended = 0
    with Cluster(launcher) as cluster:
        calm = Run(workspace, f"undisturbed-{launcher}", launcher, ["--launcher", launcher, *cluster.options])
        calm.start()
        calm.check_exit()
        wanted = calm.weights()
        victims = victims_of(launcher, kills, dice)
        while victims:
            run = Run(workspace, f"chaos-{launcher}-{ended}", launcher, ["--launcher", launcher, *cluster.options])
            run.start()
            going = run.goes_beyond(0)
            while going and victims:
                time.sleep(dice.uniform(0, 2))
                victim, began = victims.pop(), time.monotonic()
                disturb(run, cluster, victim, dice)
                step = run.step()
                going = run.goes_beyond(step)
                done.append(Kill(victim, step, time.monotonic() - began))
                print(f"{launcher}: {done[-1]}", flush=True)
            run.check_exit()
            found, ended = run.weights(), ended + 1
            different = [name for name in wanted if not torch.equal(wanted[name], found[name])]
            if different:
                raise Loss(
                    f"{len(different)} of {len(wanted)} tensors differ from the undisturbed run: {different[:3]}"
                )
    return done, ended, len(wanted)


def change_workers(launcher: str, workspace: Path) -> str:
    """Two workers, killed in mid-epoch; one goes on, and is killed; two go on to the end. Says how it went."""
    steps: list[int] = []
    with Cluster(launcher) as cluster:
        for workers in (2, 1, 2):
            options = ["--launcher", launcher, *cluster.options]
            run = Run(workspace, f"changing-{launcher}", launcher, options, workers=workers)
            before = run.step()
            run.start()
            if not run.goes_beyond(before + (len(steps) < 2)):
                raise Loss("the run ended too early")
            if len(steps) < 2:
                run.kill()
            steps.append(run.step())
        run.check_exit()
    missing = set(range(1, EPOCHS + 1)) - run.verified_epochs()
    if missing:
        raise Loss(f"epochs {sorted(missing)} were not verified")
    return (
        f"2, 1, 2 workers, the driver killed after steps {steps[0]} and {steps[1]} of {run.step()} "
        f"({run.step() // EPOCHS} an epoch): in each of the {EPOCHS} epochs every image was seen exactly once."
    )


def main() -> None:
    """Disturb both launchers and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launcher", choices=list(WORKERS), action="append")
    options = parser.parse_args()
    before = load_text()
    for launcher in options.launcher or WORKERS:
        with tempfile.TemporaryDirectory(prefix="sightline-chaos-") as name:
            sightline.synth("shapes", "shapes", images=40, seed=1, size=96, workspace=name)
            done, ended, tensors = chaos(launcher, options.kills, options.seed, Path(name))
            changed = change_workers(launcher, Path(name))
        rows = [[str(n + 1), kill.victim, str(kill.step), f"{kill.recovery_s:.1f}"] for n, kill in enumerate(done)]
        part = (
            f"## {launcher}\n\n{len(done)} kills; the run reached its end {ended} times, each time with all {tensors} "
            "tensors (weights, moving average, optimizer) equal to those of the undisturbed run. Seconds are until "
            "the next checkpoint was on the disk: noticing, starting anew, imports, and the steps up to that save.\n\n"
            f"{changed}\n\n"
            + markdown_table(["kill", "victim", "last saved step", "seconds to the next checkpoint"], rows)
        )
        write_page(f"chaos-{launcher}.md", page(part, options.seed, before))


def page(body: str, seed: int, busy: str) -> str:
    """The results as Markdown."""
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    head = f"{command('chaos')}, seed {seed}, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    return f"# Kills of workers, drivers and nodes\n\n{head}; {busy} before.\n\n{introduction}\n\n{body}"


if __name__ == "__main__":
    main()
