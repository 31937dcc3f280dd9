"""N workers train what one trains: real processes over gloo, in double precision. Run by `make bench-equivalence`.

Every model takes more than 20 steps with augmentation on: 21 images in batches of 4, so that each epoch ends with a
batch of one, which leaves most workers without an image; some images have no boxes. The same seed and global batch for
1, 2, 3 and 4 workers; compared are the losses of all steps and all weights and statistics at the end.

The last column is a control: one worker against itself, its first weights changed by one unit of rounding. What
training itself makes of such a change, no number of workers can be asked to stay below.
"""

import argparse
import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.multiprocessing as mp
from harness import machine, markdown_table, write_page
from torch import Tensor

import sightline
from sightline.config import Config, load_config
from sightline.models.factory import family_of, make_model
from sightline.training.checkpoint import Checkpoint
from sightline.training.collective import Collective, SingleProcess
from sightline.training.context import WorkerContext
from sightline.training.job import Job, make_trainer
from sightline.training.messages import Message, Origin, StepCompleted
from sightline.training.process_group import joined
from sightline.training.validation import divide

MODELS = ("nano", "ssdlite", "fasterrcnn-mobilenet-320", "mobilenet")
BATCHNORM = ("sync", "frozen")
PRECISIONS = {"float64": 1e-8, "float32": 0.2}
"""How far apart losses and weights may be: AdamW makes much of rounding."""
WORKERS = (1, 2, 3, 4)
CONTROL = 0
"""Stands for one worker whose first weights are a unit of rounding away."""
SIZE = 96
Trained = tuple[list[float], dict[str, Tensor]]


class Nowhere:
    """Keeps no checkpoint."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Nothing."""

    def load_latest(self) -> Checkpoint | None:
        """Nothing."""
        return None


def settings_of(model: str, batchnorm: str) -> Config:
    """Four epochs of six steps."""
    train = {"model": model, "batchnorm": batchnorm, "size": SIZE, "epochs": 4, "batch": 4, "precision": "float32"}
    train |= {"optimizer": "adamw", "lr": 1e-4, "weight_decay": 0.05, "hold_back": 0.0, "evaluate_every": 4}
    return load_config(
        flags={"train": train, "augment": {"hflip": 0.5, "scale": 0.2, "mosaic": 0.3}, "workers": {"verify": True}}
    )


def train_all(rank: int, workers: int, workspace: str, out: str, port: int, precisions: list[str], nudge: bool) -> None:
    """Everything that one worker does."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    alone: AbstractContextManager[Collective] = nullcontext(SingleProcess())
    found = {}
    with joined("gloo") if workers > 1 else alone as collective:
        for model in MODELS:
            for batchnorm in BATCHNORM:
                for precision in precisions:
                    name = model, batchnorm, precision
                    found[name] = train_one(*name, Path(workspace), collective, nudge=nudge)
    if rank == 0:
        torch.save(found, out)


def train_one(
    model: str, batchnorm: str, precision: str, workspace: Path, collective: Collective, *, nudge: bool
) -> Trained:
    """The losses of all steps and the weights after them; `nudge` changes the last bit of the first weights."""
    name = "classes" if family_of(model).task == "classification" else "shapes"
    dataset = sightline.open_dataset(name, workspace=workspace)
    torch.manual_seed(0)
    network = make_model(model, num_classes=len(dataset.classes), size=SIZE).to(getattr(torch, precision))
    if nudge:
        nudge_weights(network)
    losses: list[float] = []

    def send(message: Message) -> None:
        if isinstance(message, StepCompleted):
            losses.append(message.losses["loss"])

    settings = settings_of(model, batchnorm)
    context = WorkerContext(Origin("run", rank=collective.rank), Nowhere(), Nowhere(), send)
    trainer = make_trainer(network, Job(divide(dataset, settings.train), settings, None), collective, context)
    trainer.evaluate = lambda _: {"score": 0.0}
    trainer.run()
    assert len(losses) >= 20
    assert len(trainer.loader.source) % settings.train.batch, "the last batch is to be smaller"
    return losses, {name: tensor.clone() for name, tensor in network.state_dict().items()}


@torch.no_grad()
def nudge_weights(network: torch.nn.Module) -> None:
    """Move every weight up or down by one unit of rounding, or not at all."""
    generator = torch.Generator().manual_seed(1)
    for tensor in network.parameters():
        step = torch.randint(-1, 2, tensor.shape, generator=generator)
        tensor.mul_(1 + step.to(tensor.dtype) * torch.finfo(tensor.dtype).eps)


def distance(one: Trained, other: Trained) -> tuple[float, float]:
    """The largest relative difference of a loss, and of a tensor of weights (absolute, below a length of 1)."""
    losses = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one[0], other[0], strict=True))
    tensors = [(a, other[1][name]) for name, a in one[1].items() if a.is_floating_point()]
    weights = max(float((a - b).norm()) / max(float(a.norm()), 1.0) for a, b in tensors)
    return losses, weights


def main() -> None:
    """Train with every number of workers, compare, write the page; fails where double precision does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="default: both")
    precisions = parser.parse_args().precision or list(PRECISIONS)
    trained = {}
    with tempfile.TemporaryDirectory(prefix="sightline-equivalence-") as name:
        sightline.synth("shapes", "shapes", images=26, seed=3, workspace=name)
        sightline.synth("shape-classes", "classes", images=26, seed=3, workspace=name)
        for workers in (*WORKERS, CONTROL):
            out = f"{name}/{workers}.pt"
            count = max(workers, 1)
            given = (count, name, out, 29600 + workers, precisions, workers == CONTROL)
            mp.spawn(train_all, given, nprocs=count)  # type: ignore[attr-defined, no-untyped-call]
            trained[workers] = torch.load(out, weights_only=True)
            print(f"{workers or 'control'} workers are done", flush=True)
    rows, worst = [], dict.fromkeys(PRECISIONS, 0.0)
    for key in trained[1]:
        apart = [distance(trained[1][key], trained[workers][key]) for workers in (*WORKERS[1:], CONTROL)]
        rows.append([*key, *(f"{loss:.0e} / {weights:.0e}" for loss, weights in apart)])
        worst[key[2]] = max(worst[key[2]], *(max(pair) for pair in apart[:-1]))
    table = markdown_table(["model", "BatchNorm", "precision", *(f"{n} workers" for n in WORKERS[1:]), "control"], rows)
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    page = f"""# N workers train what one trains

`make bench-equivalence`, {datetime.now(UTC):%Y-%m-%d}, {machine()}.

{introduction}

Each cell: the largest relative difference to one worker, of a loss / of a tensor of weights (by its length; tensors
shorter than 1, such as biases before BatchNorm whose true gradient is zero, absolutely). In double precision the worst
is **{worst["float64"]:.0e}**, and 1e-8 is what is asked. In single precision sums come in another order with another
number of workers, and AdamW turns rounding into steps wherever the true gradient is zero: the worst is
{worst["float32"]:.0e}, and {PRECISIONS["float32"]} what is held.

{table}
"""
    print(page)
    write_page("equivalence.md", page)
    for precision, allowed in PRECISIONS.items():
        if worst[precision] > allowed:
            sys.exit(f"{precision} differs by {worst[precision]:.1e}")


if __name__ == "__main__":
    main()
