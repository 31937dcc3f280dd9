"""Our training loop against torchvision's reference loop, one process and one thread each. Run by `make bench-train`.

Both train Faster R-CNN MobileNetV3-Large 320 FPN from scratch on DeepPCB's training images, with SGD and the same
batch. The reference takes its best of 0, 1 and 2 loader workers. All contenders take turns, each in a process of its
own; images per second are those after the first steps, so that neither start-up nor warm-up counts. Ours is the real
path: `sightline.train`, which tells of every step and is stopped after enough of them.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness import Measured, collect_turns, load_text, machine, markdown_table, paired_ratio, rate_text, write_page

import sightline
from sightline.config import load_config

SHARED = Path(__file__).resolve().parents[2] / "shared"
MODEL = "fasterrcnn-mobilenet-320"
WARM_UP = 3
STEPS, REPEATS, BATCH = 30, 5, 2
AIM, AT_LEAST = 1.3, 1.1

LIKE_REFERENCE: dict[str, dict[str, Any]] = {
    "train": {"precision": "float32", "optimizer": "sgd", "lr": 0.005, "weight_decay": 0.0, "ema": 0.0},
    "augment": {"hflip": 0.0},
}
"""No moving average and no augmentation, for the reference has neither."""

AS_USUAL: dict[str, dict[str, Any]] = {"train": {}, "augment": {}}

DIFFERENCES = """The reference decodes to float32 in its loader and resizes inside the model; ours resizes 8-bit pixels
in the loader's thread; both networks see 320 x 320 pixels. The reference goes through DistributedDataParallel with one
process, as it is. Ours also draws proposals by a key of each image, measures the gradient's length, clips it, and
checks every step for numbers that are not finite. Neither saves anything while it is measured. The last line is ours
with its usual settings: optimizer, moving average of the weights, mirrored images and precision as they come (bfloat16
where the CPU has instructions for it); everything else here is float32."""


def train(workspace: Path, *, usual: bool, steps: int, batch: int) -> float:
    """Ours, in this process: images per second after the warm-up."""
    from sightline.errors import Stopped

    settings = AS_USUAL if usual else LIKE_REFERENCE
    fixed = {"model": MODEL, "batch": batch, "threads": 1, "epochs": 1, "checkpoint_every_s": 1e6}
    config = load_config(flags={**settings, "train": {**settings["train"], **fixed}})
    ended: list[float] = []
    try:
        sightline.train(
            "deeppcb",
            workspace=workspace,
            config=config,
            fresh=True,
            on_step=lambda *_: ended.append(time.perf_counter()),
            should_stop=lambda: len(ended) == WARM_UP + steps,
        )
    except Stopped:
        return steps * batch / (ended[-1] - ended[WARM_UP - 1])
    raise SystemExit(f"the dataset is too small for {WARM_UP + steps} steps of {batch} images")


def run_child(command: list[str]) -> float:
    """Run a contender in a process of its own, which prints `… images/s`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
    found = re.search(r"([0-9.]+) images/s", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return float(found[1])


def contenders(workspace: Path, options: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Everyone who takes turns."""
    length = ["--steps", str(options.steps), "--batch", str(options.batch)]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(options.reference)]
    runs: dict[str, Callable[[], float]] = {
        reference_name(workers): partial(
            run_child, [*launch, str(options.data), "--loader-workers", str(workers), *length]
        )
        for workers in (0, 1, 2)
    }
    for name, how in (("sightline", "like-reference"), ("sightline, as usual", "as-usual")):
        runs[name] = partial(run_child, [__file__, "--ours", how, "--workspace", str(workspace), *length])
    return runs


def reference_name(workers: int) -> str:
    """How the reference is called in the table."""
    return f"reference, {workers} loader worker{'' if workers == 1 else 's'}"


def measure(options: argparse.Namespace) -> float:
    """All turns; writes the page and returns how many times the reference's best we do."""
    before = load_text()
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        sightline.ingest(options.data, "deeppcb", workspace=name, verify="header")
        found = collect_turns(contenders(Path(name), options), repeats=options.repeats)
    best = max((found[reference_name(workers)] for workers in (0, 1, 2)), key=lambda measured: measured.median)
    ratio = paired_ratio(found["sightline"], best)
    write_page("train.md", page(found, best, options, busy=f"{before} before, {load_text()} after"))
    print(f"{ratio:.2f} times {best.name}")
    return ratio


def page(found: dict[str, Measured], best: Measured, options: argparse.Namespace, *, busy: str) -> str:
    """The results as Markdown."""
    rows = [[m.name, rate_text(m.median), m.spread, f"{paired_ratio(m, best):.2f}"] for m in found.values()]
    table = markdown_table(["loop", "images/s (median)", "lowest to highest", "ratio to the reference's best"], rows)
    introduction = (__doc__ or "").partition("\n\n")[2]
    head = f"`make bench-train`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}."
    return (
        f"# Training speed\n\n{head}\n\n{introduction}\n"
        f"{options.repeats} turns, {options.steps} steps of {options.batch} images each after {WARM_UP} of warm-up: "
        f"**{paired_ratio(found['sightline'], best):.2f} times** the reference at its best ({best.name}); the aim is "
        f"{AIM}, the least {AT_LEAST}.\n\n{table}\n\n{DIFFERENCES}\n"
    )


def main() -> None:
    """Measure, and fail when it is too slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "deeppcb")
    parser.add_argument("--reference", type=Path, default=SHARED / "baselines" / "references_train.py")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--ours", choices=["like-reference", "as-usual"], help=argparse.SUPPRESS)
    parser.add_argument("--workspace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        rate = train(options.workspace, usual=options.ours == "as-usual", steps=options.steps, batch=options.batch)
        print(f"{rate:.3f} images/s")
        return
    for needed in (options.data, options.reference):
        if not needed.exists():
            raise SystemExit(f"{str(needed)!r} is not here: give its place with --data and --reference")
    ratio = measure(options)
    if ratio < AT_LEAST:
        raise SystemExit(f"only {ratio:.2f} times the reference; expected at least {AT_LEAST}")


if __name__ == "__main__":
    main()
