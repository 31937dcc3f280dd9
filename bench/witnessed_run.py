"""A training run that can be killed and started again, with what its witness saw (see witness.py)."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

import sightline
from sightline.training.checkpoint import CheckpointDirectory

WITNESS = Path(__file__).with_name("witness.py")
START_TIMEOUT_S = 180.0

Event = tuple[str, str]
Weights = dict[str, torch.Tensor]


class Loss(Exception):
    """Something that had been saved is gone, or a run ended otherwise than it should have."""


@dataclass
class Run:
    """A training run that is started again and again in its own workspace.

    Attributes:
        lives: How often it reached its end and began anew.
    """

    workspace: Path
    dataset: Path
    epochs: int
    checkpoint_every_s: float = 0.3
    lives: int = 0
    process: "subprocess.Popen[bytes] | None" = None
    _read_from: int = field(default=0, repr=False)

    @property
    def directory(self) -> Path:
        """Where the run lies."""
        (found,) = (self.workspace / "runs").iterdir()
        return found

    @property
    def checkpoints(self) -> CheckpointDirectory:
        """Its checkpoints, as whoever comes after a kill sees them."""
        return CheckpointDirectory(self.directory / "checkpoints")

    @property
    def journal(self) -> Path:
        """What the witness wrote."""
        return self.workspace / "journal"

    def start(self) -> None:
        """Start the command; the same each time."""
        self.workspace.mkdir(parents=True, exist_ok=True)
        self._read_from = self.journal.stat().st_size if self.journal.exists() else 0
        with open(self.workspace / "output", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(WITNESS), str(self.journal), *self.command()], stdout=output, stderr=output
            )

    def command(self) -> list[str]:
        """What is typed after `sightline`."""
        settings = {
            "train.threads": 1,
            "train.ema": 0.99,
            "train.checkpoint_every_s": self.checkpoint_every_s,
            "augment.hflip": 0.5,
            "augment.scale": 0.2,
            "augment.brightness": 0.2,
        }
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        basic = ["--workspace", str(self.workspace), "--size", "64", "--batch", "4", "--epochs", str(self.epochs)]
        return ["train", str(self.dataset), *basic, *sets]

    def events(self, *, all_lives: bool = False) -> list[Event]:
        """What happened since the last start, or at all."""
        if not self.journal.exists():
            return []
        with open(self.journal, "rb") as file:
            file.seek(0 if all_lives else self._read_from)
            lines = file.read().decode().splitlines()
        return [(event, detail) for event, _, detail in (line.partition(" ") for line in lines)]

    def wait_for(self, seen: Callable[[list[Event]], bool]) -> bool:
        """Wait until something has happened; false if the process ended first."""
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not seen(self.events()):
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise Loss(f"nothing happened for {START_TIMEOUT_S:.0f} s: {self._output()}")
            time.sleep(0.001)
        return True

    def kill(self) -> bool:
        """SIGKILL; false if the process had ended before."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        if code not in (0, -signal.SIGKILL):
            raise Loss(f"the command failed with exit code {code}: {self._output()}")
        return code != 0

    def finish(self) -> None:
        """Let it train to its end."""
        assert self.process is not None
        if code := self.process.wait():
            raise Loss(f"the command failed with exit code {code}: {self._output()}")

    def begin_anew(self) -> None:
        """Remove all that it left, but not the output."""
        self.lives += 1
        shutil.rmtree(self.workspace / "runs")
        self.journal.unlink()

    def _output(self) -> str:
        return (self.workspace / "output").read_text()[-2000:]


def newest_saved(events: Sequence[Event], directory: str = "checkpoints") -> str | None:
    """The newest place whose save had returned."""
    saved = [detail.split("/")[1] for event, detail in events if event == "saved" and detail.startswith(directory)]
    return saved[-1] if saved else None


def step_of(place: str | None) -> int:
    """The step of a checkpoint's name; 0 for none."""
    return int(place.removeprefix("step-").split(".")[0]) if place else 0


def resumed_at(events: Sequence[Event]) -> int | None:
    """The step at which a process went on, once it has."""
    return next((int(detail) for event, detail in events if event == "resumed"), None)


def what_it_did(events: Sequence[Event]) -> str:
    """What a kill interrupted, by the last thing that was noted."""
    event, detail = events[-1]
    return {"saving": f"saving {detail}", "scoring": "evaluating"}.get(event, "training")


def check_saved(run: Run) -> int:
    """Raise unless all saves that had returned are there and whole; returns the step of the newest."""
    events = run.events(all_lives=True)
    wanted = newest_saved(events)
    found = run.checkpoints.load_latest() if wanted else None
    if wanted and (found is None or found.progress["step"] < step_of(wanted)):
        raise Loss(f"{wanted} was saved, but the newest that verifies is {found and found.progress['step']}")
    best = newest_saved(events, "best")
    if best and CheckpointDirectory(run.directory / "best").load_latest() is None:
        raise Loss(f"the best model was saved as {best}, but none verifies")
    return step_of(wanted)


def all_weights(run: Run) -> Weights:
    """Weights, moving average and optimizer state at the end, and the model that was left."""
    found = run.checkpoints.load_latest()
    if found is None or found.ema is None:
        raise Loss("a run ended without a checkpoint")
    tensors = {**found.weights, **{f"ema {name}": tensor for name, tensor in found.ema.items()}}
    for number, state in found.optimizer["state"].items():
        tensors |= {f"optimizer {number} {name}": value for name, value in state.items()}
    model = load_file(run.directory / "model" / "weights.safetensors")
    return tensors | {f"model {name}": tensor for name, tensor in model.items()}


def check_end(run: Run, undisturbed: Weights) -> None:
    """Raise unless a run that ended has the weights of one that was never disturbed."""
    ours = all_weights(run)
    different = [name for name in undisturbed if name not in ours or not torch.equal(ours[name], undisturbed[name])]
    if different or len(ours) != len(undisturbed):
        raise Loss(f"{len(different)} of {len(undisturbed)} tensors differ from the undisturbed run: {different[:3]}")


def prepare(directory: Path, *, epochs: int, images: int = 60) -> tuple[Run, Weights]:
    """A dataset, a run, and the weights of one that was left alone."""
    dataset = directory / "shapes"
    sightline.synth("shapes", str(dataset), images=images, seed=1, size=96)
    alone = Run(directory / "undisturbed", dataset, epochs)
    alone.start()
    alone.finish()
    return Run(directory / "chaos", dataset, epochs), all_weights(alone)
