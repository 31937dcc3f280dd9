"""How good `nano` gets on DeepPCB in an hour of two cores, with nobody's weights. Run by `make bench-quality`.

It learns on synthetic boards first, then on the real ones. The best epoch and the threshold are chosen on 200 images
held back from the training list; the 500 test images are scored once, at the end.
Usage: bench/quality.py [DEEPPCB] [--threads 1] [--set section.key=value …]
"""

import argparse
import os
import resource
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import load_text, machine, markdown_table, write_page

from sightline import api
from sightline.config import load_config
from sightline.data.parallel import num_cores
from sightline.metrics.result import DetectionResult
from sightline.training.run import RunResult

HERE = Path(__file__).parent
FIRST, RECIPE = HERE / "boards-first.toml", HERE / "deeppcb.toml"
NUM_BOARDS, BOARD_SIZE, BOARD_SEED = 16_000, 320, 7
BOARDS, DATASET = "boards-first", "deeppcb"
IOU = 0.33


@dataclass(frozen=True)
class Spent:
    """Minutes by the clock, and of the cores."""

    clock: float
    cores: float

    def __str__(self) -> str:
        return f"{self.clock:.1f} minutes ({self.cores:.1f} of the cores)"


def main() -> None:
    """Make boards, train on them, ingest, train, score, write the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", nargs="?", type=Path, default=HERE.parent.parent / "shared/data/deeppcb")
    arguments.add_argument("--threads", type=int, default=0, help="of torch; default: one for each core")
    arguments.add_argument("--set", dest="sets", action="append", default=[], help="a setting other than the recipe's")
    given = arguments.parse_args()
    if not given.source.is_dir():
        raise SystemExit(f"{given.source} is not there: give the folder of DeepPCB with trainval.txt and test.txt")
    before = load_text()
    api.synth("boards", BOARDS, images=NUM_BOARDS, size=BOARD_SIZE, seed=BOARD_SEED, replace=True)
    api.ingest(given.source, to=DATASET, replace=True)
    threads = f"train.threads={given.threads}"
    first, spent_first = train(BOARDS, FIRST, [threads])
    run, spent = train(DATASET, RECIPE, [threads, f"train.weights={first.name}", *given.sets])
    result = api.evaluate(run.name, DATASET, split="test", iou=IOU)
    untrained = api.evaluate(first.name, DATASET, split="test", iou=IOU, size=640)
    assert isinstance(result, DetectionResult)
    assert isinstance(untrained, DetectionResult)
    busy = f"{given.threads or num_cores()} threads; {before} before, {load_text()} after"
    page = describe(run, result, untrained, spent_first, spent, given.sets, busy)
    print(page)
    write_page("quality.md", page)


def train(dataset: str, recipe: Path, sets: list[str]) -> tuple[RunResult, Spent]:
    """Train by a recipe, afresh; also the time it took with all evaluations."""
    config = load_config(recipe, sets=tuple(sets))
    started, before = time.perf_counter(), os.times()
    run = api.train(dataset, config=config, name=recipe.stem, fresh=True, on_scores=say, on_note=print)
    after = os.times()
    cores = after.user + after.system - before.user - before.system
    return run, Spent((time.perf_counter() - started) / 60, cores / 60)


def say(epoch: int, scores: dict[str, float]) -> None:
    """One line an evaluation."""
    figures = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
    print(f"{datetime.now(UTC):%H:%M:%S}  epoch {epoch:>3}  {figures}", flush=True)


def describe(
    run: RunResult,
    result: DetectionResult,
    untrained: DetectionResult,
    spent_first: Spent,
    spent: Spent,
    sets: list[str],
    busy: str,
) -> str:
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
    both = Spent(spent_first.clock + spent.clock, spent_first.cores + spent.cores)
    return f"""# Quality on DeepPCB

Made by `make bench-quality` ({datetime.now(UTC):%Y-%m-%d}; {machine()}; {busy}), which runs, from nothing:

    sightline synth boards --to {BOARDS} --images {NUM_BOARDS} --size {BOARD_SIZE} --seed {BOARD_SEED}
    sightline train {BOARDS} --config bench/{FIRST.name} --name {FIRST.stem}
    sightline ingest ../shared/data/deeppcb --to {DATASET}
    sightline train {DATASET} --config bench/{RECIPE.name} --weights {FIRST.stem} --name {RECIPE.stem}{settings}
    sightline evaluate {RECIPE.stem} {DATASET} --split test --iou {IOU}

`nano`, {run.num_parameters:,} parameters, no weights of anybody: first on our own synthetic boards, then {run.epochs}
epochs of the training list less 200 images, which chose epoch {run.best_epoch} and the threshold {result.score:.3f};
the {result.num_images} test images were scored once. Training took **{both}** with all evaluations: {spent_first} on
synthetic boards, {spent} on real ones; peak memory {peak:,.0f} MB. Its score on the held-back images was
{100 * run.best_score:.2f} %; that of the model that had seen synthetic boards only, on the test images,
{100 * untrained.map:.2f} %.

{markdown_table(["class", "objects", f"AP at {IOU}", "AP50", "precision", "recall", "F"], rows)}

mAP at IoU {IOU} **{100 * result.map:.2f} %**, F **{100 * result.rates.f1:.2f} %**; the paper, which also looks at a
template of each board, says 98.6 % and 98.2 %.
"""


if __name__ == "__main__":
    main()
