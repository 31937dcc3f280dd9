"""Training throughput by number of threads and wait policy while other processes keep cores busy.

    nice -n 5 .venv/bin/python bench/threads.py

Each cell is a fresh process that trains `nano` on 40 synthetic images for a few seconds. The variants of one background
load run in turn, round by round, so that whatever else the machine does reaches all of them. The table is in
docs/benchmarks/notes.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sightline
from sightline.cluster.local_node import busy_cores
from sightline.config import load_config

VARIANTS: dict[str, tuple[int, dict[str, str]]] = {
    "1 thread": (1, {}),
    "2 threads": (2, {}),
    "2 threads, passive": (2, {"OMP_WAIT_POLICY": "passive"}),
    "default": (0, {}),
}
ROUNDS, SECONDS = 3, 4.0


def train_for_seconds(workspace: str, threads: int, size: int) -> float:
    """Images per second, without the first step."""
    from sightline.errors import Stopped

    began, images = 0.0, 0

    def on_step(_progress: object, _num_steps: int, _losses: object, step_images: int) -> None:
        nonlocal began, images
        if began:
            images += step_images
        began = began or time.monotonic()

    settings = {"model": "nano", "weights": "none", "size": size, "threads": threads, "epochs": 10_000}
    try:
        sightline.train(
            "shapes",
            workspace=workspace,
            fresh=True,
            on_step=on_step,
            should_stop=lambda: bool(began) and time.monotonic() - began > SECONDS,
            config=load_config(flags={"train": {**settings, "evaluate_every": 10_000}, "tracking": {"enabled": False}}),
        )
    except Stopped:
        return images / (time.monotonic() - began)
    raise AssertionError("10,000 epochs do not end within seconds")


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that keep a core busy each."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(workspace: Path, variant: str, size: int) -> float:
    """Images per second of one variant, in a process of its own."""
    threads, environment = VARIANTS[variant]
    command = [sys.executable, __file__, str(workspace), str(threads), str(size)]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout))


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        sightline.synth("shapes", "shapes", images=40, workspace=workspace)
        print(f"| busy processes | cores busy without us | size | {' | '.join(VARIANTS)} |")
        print("|" + " --- |" * (3 + len(VARIANTS)))
        for busy in (0, 1):
            for size in (64, 320):
                found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
                with busy_processes(busy):
                    others = busy_cores(interval_s=3.0)
                    for _ in range(ROUNDS):
                        for variant, speeds in found.items():
                            speeds.append(measure(workspace, variant, size))
                cells = (f"{statistics.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in found.values())
                print(f"| {busy} | {others:.1f} | {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(train_for_seconds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
