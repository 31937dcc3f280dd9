"""How good `nano` gets on DeepPCB, from scratch, in an hour of two cores. Run by `make bench-quality`.

The best epoch and the threshold are chosen on 200 images held back from the training list; the 500 test images are
scored once, at the end. Usage: bench/quality.py [DEEPPCB] [--set section.key=value …]
"""

import argparse
import os
import resource
import time
from datetime import UTC, datetime
from pathlib import Path

from harness import machine, markdown_table, write_page

from sightline import api
from sightline.config import load_config
from sightline.metrics.result import DetectionResult
from sightline.training.run import RunResult

HERE = Path(__file__).parent
RECIPE = HERE / "deeppcb.toml"
IOU = 0.33
DATASET = "deeppcb"


def main() -> None:
    """Ingest, train, score, write the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", nargs="?", type=Path, default=HERE.parent.parent / "shared/data/deeppcb")
    arguments.add_argument("--set", dest="sets", action="append", default=[], help="a setting other than the recipe's")
    given = arguments.parse_args()
    if not given.source.is_dir():
        raise SystemExit(f"{given.source} is not there: give the folder of DeepPCB with trainval.txt and test.txt")
    api.ingest(given.source, to=DATASET, replace=True)
    run, seconds = train(given.sets)
    result = api.evaluate(run.name, DATASET, split="test", iou=IOU)
    assert isinstance(result, DetectionResult)
    page = describe(run, result, seconds, given.sets)
    print(page)
    write_page("quality.md", page)


def train(sets: list[str]) -> tuple[RunResult, dict[str, float]]:
    """Train by the recipe, afresh; also the seconds it took by the clock and on the cores."""
    config = load_config(RECIPE, sets=tuple(sets))
    started, before = time.perf_counter(), os.times()
    run = api.train(DATASET, config=config, fresh=True, on_scores=say)
    after = os.times()
    cores = after.user + after.system - before.user - before.system
    return run, {"clock": time.perf_counter() - started, "cores": cores}


def say(epoch: int, scores: dict[str, float]) -> None:
    """One line an evaluation."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
    print(f"{datetime.now(UTC):%H:%M:%S}  epoch {epoch:>3}  {figures}", flush=True)


def describe(run: RunResult, result: DetectionResult, seconds: dict[str, float], sets: list[str]) -> str:
    """The page."""
    rows = [
        [row.name, str(row.num_true)]
        + [
            f"{100 * figure:.1f} %"
            for figure in (row.ap, row.ap50, row.rates.precision, row.rates.recall, row.rates.f1)
        ]
        for row in result.per_class
    ]
    total = (result.map, result.map50, result.rates.precision, result.rates.recall, result.rates.f1)
    rows.append(
        ["**all**", str(sum(row.num_true for row in result.per_class)), *(f"**{100 * x:.2f} %**" for x in total)]
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    settings = "".join(f" --set {text}" for text in sets)
    return f"""# Quality on DeepPCB

Made by `make bench-quality` ({datetime.now(UTC):%Y-%m-%d}; {machine()}), which runs, from nothing:

    sightline ingest ../shared/data/deeppcb --to {DATASET}
    sightline train {DATASET} --config bench/deeppcb.toml{settings}
    sightline evaluate RUN {DATASET} --split test --iou {IOU}

`nano`, {run.num_parameters:,} parameters, from scratch, no weights of anybody. {run.epochs} epochs of the training list
less 200 images, which chose epoch {run.best_epoch} and the threshold {result.score:.3f}; the {result.num_images} test
images were scored once. Training took **{seconds["clock"] / 60:.1f} minutes** with all evaluations
({seconds["cores"] / 60:.1f} minutes of the cores), peak memory {peak:,.0f} MB. Its score on the held-back images was
{100 * run.best_score:.2f} %.

{markdown_table(["class", "objects", f"AP at {IOU}", "AP50", "precision", "recall", "F"], rows)}

mAP at IoU {IOU} **{100 * result.map:.2f} %**, F **{100 * result.rates.f1:.2f} %**; the paper, which also looks at a
template of each board, says 98.6 % and 98.2 %.
"""


if __name__ == "__main__":
    main()
