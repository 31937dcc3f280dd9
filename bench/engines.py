"""Every engine against torch as it is, on the CPU with the same threads. Run by `make bench-engines`.

"torch eager" is the model itself: `model.detect` with nothing folded or laid out anew. All contenders take turns in one
process on the same images: synthetic boards of 640 pixels, fitted to the model's usual size beforehand, so that what is
timed is what an engine does: normalising, the network, decoding, suppression. Models know 16 boards by heart, so what
comes after the network has as much to do as with a trained model, no more.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import Measured, collect_turns, load_text, machine, markdown_table, paired_ratio, rate_text, write_page
from numpy.typing import NDArray
from overfitted import kept_workspace, learn

from sightline.data.parallel import num_cores
from sightline.data.synth.boards import render_board
from sightline.engines.factory import ENGINES, open_engine
from sightline.models.bundle import open_bundle
from sightline.models.detector import Detector
from sightline.models.factory import family_of
from sightline.models.preprocessor import make_preprocessor
from sightline.structures import Detections

FAMILIES = ("nano", "ssdlite", "fasterrcnn-mobilenet", "fasterrcnn-mobilenet-320")
BATCHES = (1, 4)
REPEATS, TURN_S = 7, 0.6
EAGER = "torch eager"
AIM, SLACK = 2.0, 0.95

Canvases = NDArray[np.uint8]
Detect = Callable[[Canvases], list[Detections]]


def make_canvases(model: Detector, count: int) -> Canvases:
    """Boards as the model wants them, B x H x W x 3."""
    preprocessor = make_preprocessor(model.inference)
    boards = [render_board(seed=7, index=index, size=640).image for index in range(count)]
    return np.stack([preprocessor.prepare(np.stack([board] * 3, axis=2)).canvas for board in boards])


def rate(detect: Detect, images: Canvases) -> float:
    """Images per second over a turn, by the middle of its calls: a short pause of the machine does not count."""
    took: list[float] = []
    started = time.perf_counter()
    while len(took) < 3 or time.perf_counter() - started < TURN_S:
        before = time.perf_counter()
        detect(images)
        took.append(time.perf_counter() - before)
    return len(images) / statistics.median(took)


def measure(family: str, workspace: Path, options: argparse.Namespace) -> dict[int, dict[str, Measured]]:
    """All turns of a family, by batch."""
    name = learn(family, workspace)
    model = open_bundle(workspace / "runs" / name / "model").load(size=family_of(family).size)
    contenders: dict[str, Detect] = {EAGER: model.detect}
    for engine in sorted(ENGINES, key=lambda name: name == "auto"):
        opened = open_engine(model.source(name), name=engine, threads=options.threads, cache=workspace / "compiled")
        contenders[engine] = opened.detect
    found = {}
    for batch in BATCHES:
        images = make_canvases(model, batch)
        for detect in contenders.values():
            detect(images)
        print(f"{family}, batch {batch}", flush=True)
        turns = {name: partial(rate, detect, images) for name, detect in contenders.items()}
        found[batch] = collect_turns(turns, repeats=options.repeats)
    return found


def page(results: dict[str, dict[int, dict[str, Measured]]], options: argparse.Namespace, *, busy: str) -> str:
    """The results as Markdown."""
    head = f"`make bench-engines`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}."
    introduction = (__doc__ or "").partition("\n\n")[2]
    rows = [
        [family, str(batch), *(rate_text(one.median) for one in found.values()), *_ratios(found)]
        for family, batches in results.items()
        for batch, found in batches.items()
    ]
    names = list(next(iter(next(iter(results.values())).values())))
    header = ["model", "batch", *(f"{name}" for name in names), "auto by eager", "auto by the best"]
    return (
        f"# Engines\n\n{head}\n\n{introduction}\n{options.threads} threads each; medians of {options.repeats} turns, "
        f"images per second. The aim is {AIM} times torch eager, and no less than {SLACK} of the best engine.\n\n"
        f"{markdown_table(header, rows)}\n"
    )


def _ratios(found: dict[str, Measured]) -> list[str]:
    return [f"{by_eager(found):.2f}", f"{by_best(found):.2f}"]


def by_eager(found: dict[str, Measured]) -> float:
    """How many times torch eager auto is."""
    return paired_ratio(found["auto"], found[EAGER])


def by_best(found: dict[str, Measured]) -> float:
    """Auto by the best engine; they may be the same engine twice, and then this is how well it was measured."""
    return min(paired_ratio(found["auto"], one) for name, one in found.items() if name != "auto")


def main() -> None:
    """Measure, and fail where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(FAMILIES))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument("--dry", action="store_true", help="write no page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    before = load_text()
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        workspace = kept_workspace(Path(name))
        results = {family: measure(family, workspace, options) for family in options.models}
    text = page(results, options, busy=f"{before} before, {load_text()} after")
    print(text)
    if not options.dry:
        write_page("engines.md", text)
    missed = [
        f"{family} at batch {batch}: {by_eager(found):.2f} times eager, {by_best(found):.2f} of the best"
        for family, batches in results.items()
        for batch, found in batches.items()
        if by_eager(found) < AIM or by_best(found) < SLACK
    ]
    if missed:
        raise SystemExit(f"the aim of {AIM} and {SLACK} was missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
