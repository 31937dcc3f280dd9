"""What a second worker buys on two cores. Run by `make bench-train`.

All contenders take turns, each a command of its own, on DeepPCB's training images. Images per second are those after
the first steps; the time to the first step counts from the start of the command, imports and all. Ours is the real
path: `sightline.train`, which tells of every step and is stopped after enough of them.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness import Measured, collect_turns, load_text, machine, markdown_table, paired_ratio, rate_text, write_page

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
WARM_UP, BATCH = 3, 4
QUICK = 4  # SSDlite's steps are so much shorter; what a launcher does at its start must not weigh.
SSDLITE, FASTER = "ssdlite", "fasterrcnn-mobilenet-320"
OURS: dict[str, dict[str, Any]] = {
    "SSDlite, 1 worker x 2 threads": {"model": SSDLITE, "workers": 1, "threads": 2, "batchnorm": "local"},
    "SSDlite, 2 workers x 1 thread, local": {"model": SSDLITE, "workers": 2, "threads": 1, "batchnorm": "local"},
    "SSDlite, 2 workers x 1 thread, sync": {"model": SSDLITE, "workers": 2, "threads": 1, "batchnorm": "sync"},
    "SSDlite, 2 workers on Ray, local": {
        "model": SSDLITE,
        "workers": 2,
        "threads": 1,
        "batchnorm": "local",
        "launcher": "ray",
    },
    "SSDlite, 2 runs x 1 thread that share nothing": {
        "model": SSDLITE,
        "workers": 1,
        "threads": 1,
        "batchnorm": "local",
        "batch": 2,
    },
    "Faster R-CNN, 2 workers": {"model": FASTER, "workers": 2, "threads": 1, "batchnorm": "local"},
}


def train(workspace: Path, settings: dict[str, Any], *, steps: int, began: float) -> None:
    """One of ours, in this command; prints the rate and the time to the first step."""
    import sightline
    from sightline.config import load_config
    from sightline.errors import Stopped

    batch = settings.get("batch", BATCH)
    fixed = {"batch": batch, "epochs": 1, "checkpoint_every_s": 1e6, "ema": 0.0, "precision": "float32"}
    fixed |= {"optimizer": "sgd", "lr": 0.005, "weight_decay": 0.0}
    spread = {"count": settings["workers"], "launcher": settings.get("launcher", "auto")}
    own = {name: settings[name] for name in ("model", "threads", "batchnorm")}
    config = load_config(
        flags={
            "train": {**fixed, **own},
            "augment": {"hflip": 0.0},
            "workers": spread,
            "tracking": {"enabled": False},
        }
    )
    ended: list[float] = []
    try:
        sightline.train(
            "deeppcb",
            workspace=workspace,
            config=config,
            name=f"bench-{os.getpid()}",
            on_step=lambda *_: ended.append(time.time()),
            should_stop=lambda: len(ended) >= WARM_UP + steps,
        )
    except Stopped:
        done = ended[: WARM_UP + steps]
        print(
            f"{steps * batch / (done[-1] - done[WARM_UP - 1]):.3f} images/s, first step after {ended[0] - began:.2f} s"
        )
        return
    raise SystemExit("the dataset is too small for so many steps")


def run_child(command: list[str], first_steps: list[float]) -> float:
    """Run a contender; notes its time to the first step and gives its images per second."""
    began = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    filled = [str(began) if part == "BEGAN" else part for part in command]
    done = subprocess.run([sys.executable, *filled], capture_output=True, text=True, env=environment)
    found = re.search(r"([0-9.]+) images/s(?:, first step after ([0-9.]+) s)?", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}")
    if found[2]:
        first_steps.append(float(found[2]))
    return float(found[1])


def run_children(command: list[str], first_steps: list[float], *, at_once: int) -> float:
    """Run a contender, or several of it at once; their images per second together."""
    with ThreadPoolExecutor(at_once) as pool:
        return sum(pool.map(lambda _: run_child(command, first_steps), range(at_once)))


def contenders(
    workspace: Path, options: argparse.Namespace, first_steps: dict[str, list[float]]
) -> dict[str, Callable[[], float]]:
    """Everyone who takes turns."""
    runs: dict[str, Callable[[], float]] = {}
    for name, own in OURS.items():
        steps = ["--steps", str(options.steps * (QUICK if own["model"] == SSDLITE else 1))]
        ours = [__file__, "--ours", json.dumps(own), "--workspace", str(workspace), "--began", "BEGAN", *steps]
        at_once = BATCH // own.get("batch", BATCH)
        runs[name] = partial(run_children, ours, first_steps.setdefault(name, []), at_once=at_once)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(options.reference)]
    for loaders in (0, 1, 2):
        settings = {"--loader-workers": loaders, "--batch": 2, "--steps": options.steps}
        reference = [*launch, str(options.data), *(str(part) for pair in settings.items() for part in pair)]
        runs[reference_name(loaders)] = partial(run_child, reference, [])
    return runs


def reference_name(loaders: int) -> str:
    """How the reference is called in the table."""
    return f"reference (Faster R-CNN, 2 processes), {loaders} loader workers"


def page(
    found: dict[str, Measured], first_steps: dict[str, list[float]], options: argparse.Namespace, busy: str
) -> str:
    """The results as Markdown."""
    alone, local, sync, on_ray, apart, faster = (found[name] for name in OURS)
    best = max((found[reference_name(loaders)] for loaders in (0, 1, 2)), key=lambda measured: measured.median)
    first = {name: f"{statistics.median(times):.1f} s" for name, times in first_steps.items()}
    rows = [[m.name, rate_text(m.median), m.spread, first.get(m.name, "-")] for m in found.values()]
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    head = f"`make bench-train`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}."
    ratios = [
        ("two workers by one with two threads (SSDlite, local BatchNorm)", paired_ratio(local, alone), "1.25"),
        ("the same with BatchNorm over the whole batch (sync)", paired_ratio(sync, alone), "-"),
        (
            "two runs that share nothing by one worker with two threads: what the cores give",
            paired_ratio(apart, alone),
            "-",
        ),
        (f"ours by the {best.name}", paired_ratio(faster, best), "1.1"),
        ("workers that Ray started by subprocesses", paired_ratio(on_ray, local), "0.9"),
    ]
    compared = markdown_table(
        ["ratio", "measured", "asked"], [[name, f"**{r:.2f}**", asked] for name, r, asked in ratios]
    )
    return f"""# What a second worker buys

{head}

{introduction}

{options.repeats} turns, {options.steps} steps ({QUICK * options.steps} of SSDlite) of 4 images (2 a worker) after
{WARM_UP} of warm-up; float32, SGD.

{compared}

{markdown_table(["contender", "images/s (median)", "lowest to highest", "to the first step"], rows)}
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "deeppcb")
    parser.add_argument("--reference", type=Path, default=SHARED / "baselines" / "references_train.py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ours", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--workspace", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        train(options.workspace, options.ours, steps=options.steps, began=options.began)
        return
    import sightline

    before, first_steps = load_text(), dict[str, list[float]]()
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        sightline.ingest(options.data, "deeppcb", workspace=name, verify="header")
        found = collect_turns(contenders(Path(name), options, first_steps), repeats=options.repeats)
    write_page("workers.md", page(found, first_steps, options, f"{before} before, {load_text()} after"))


if __name__ == "__main__":
    main()
