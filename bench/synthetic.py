"""What `make demo` trains, scored: on synthetic boards that were held out, and on the real ones of DeepPCB.

Run by `make bench-synthetic`. Usage: bench/synthetic.py [DEEPPCB]
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from harness import machine, markdown_table, write_page

from sightline import api
from sightline.config import load_config
from sightline.metrics.result import DetectionResult

HERE = Path(__file__).parent
IMAGES, SIZE, SEED = 2_000, 320, 1
REAL_SIZE = 640


def main() -> None:
    """Make boards, train, score twice, write the page."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / "shared/data/deeppcb"
    api.synth("boards", "boards", images=IMAGES, size=SIZE, seed=SEED, replace=True)
    started = time.perf_counter()
    run = api.train("boards", config=load_config(HERE / "boards.toml"), name="synthetic", fresh=True)
    seconds = time.perf_counter() - started
    rows = [["held-out boards", *figures(api.evaluate(run.name, "boards", split="test"))]]
    if source.is_dir():
        api.ingest(source, to="deeppcb", replace=True)
        real = api.evaluate(run.name, "deeppcb", split="test", size=REAL_SIZE)
        rows.append(["DeepPCB's test images", *figures(real)])
    page = f"""# Learned from synthetic boards alone

Made by `make bench-synthetic` ({datetime.now(UTC):%Y-%m-%d}; {machine()}): {IMAGES:,} boards of {SIZE} pixels
(`sightline synth boards --images {IMAGES} --size {SIZE} --seed {SEED}`), then the training of `make demo`:

    sightline train boards --config bench/boards.toml

{run.epochs} epochs, {run.steps:,} steps, from scratch: **{seconds:.0f} seconds** with evaluations and pictures, of them
{sum(run.seconds.values()):.0f} in the loop; {run.images_per_s:.1f} images/s while training.

{markdown_table(["scored on", "images", "mAP50", "mAP", "precision", "recall", "F"], rows)}

Real boards were given at their full {REAL_SIZE} pixels, where traces are as wide as in the synthetic ones. No real
image was trained on; [quality.md](quality.md) says what a model reaches that was.
"""
    print(page)
    write_page("synthetic.md", page)


def figures(result: object) -> list[str]:
    """A row of the table."""
    assert isinstance(result, DetectionResult)
    rates = result.rates
    shares = (result.map50, result.map, rates.precision, rates.recall, rates.f1)
    return [str(result.num_images), *(f"{share:.3f}" for share in shares)]


if __name__ == "__main__":
    main()
