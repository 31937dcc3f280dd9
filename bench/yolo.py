"""YOLOv8n on DeepPCB: our loop with two workers, Ultralytics' trainer with two threads. Run by `make bench-yolo`.

Both start from the same file of weights and see the same images at the same size, batch and number of epochs, mirrored
and moved alike, without mosaics. They take turns, each a command of its own, with the seeds 0, 1, …; images per second
are those of training alone, without validation. Both models are scored by `sightline evaluate` on the same test images,
theirs (`last.pt`, the averaged weights) after `sightline import`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from harness import Measured, collect_turns, load_text, machine, markdown_table, paired_ratio, rate_text, write_page

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
SIZE, VAL = 640, 40
OURS, THEIRS = "ours, 2 workers x 1 thread", "Ultralytics' trainer, 2 threads"
SHIFT, ZOOM = 0.1, 0.2


def lay_out(place: Path, options: argparse.Namespace) -> None:
    """Some boards in YOLO's form, and the same as our dataset."""
    import sightline

    few = place / "few"
    few.mkdir()
    for group in options.data.iterdir():
        if group.is_dir():
            shutil.copytree(group, few / group.name)
    for name, count in (("trainval.txt", options.train + VAL), ("test.txt", options.test)):
        lines = (options.data / name).read_text().splitlines()
        step = max(1, len(lines) // count)
        (few / name).write_text("\n".join(lines[::step][:count]) + "\n")
    sightline.ingest(few, "few", workspace=place / "first")
    sightline.export_dataset("few", place / "yolo", format="yolo", workspace=place / "first")
    for kind in ("images", "labels"):
        (place / "yolo" / kind / "val").mkdir()
        for file in sorted((place / "yolo" / kind / "train").iterdir())[:VAL]:
            file.rename(place / "yolo" / kind / "val" / file.name)
    described = (place / "yolo" / "data.yaml").read_text()
    (place / "yolo" / "data.yaml").write_text(described + ("" if "val:" in described else "val: images/val\n"))
    sightline.ingest(place / "yolo", "boards", workspace=place / "workspace")
    # Theirs takes a relative path from the directory it is run in.
    names = list(sightline.open_dataset("boards", workspace=place / "workspace").classes)
    theirs = {"path": str(place / "yolo"), "train": "images/train", "val": "images/val", "names": names}
    (place / "theirs.yaml").write_text(json.dumps(theirs))  # Which is YAML too.


def train_ours(place: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Our loop; what it gave."""
    import sightline
    from sightline.config import load_config

    train = {"model": "yolov8n", "weights": str(options.weights), "epochs": options.epochs, "batch": options.batch}
    train |= {"size": SIZE, "seed": seed, "threads": 1}
    config = load_config(
        flags={
            "train": train,
            "augment": {"hflip": 0.5, "translate": SHIFT, "scale": ZOOM},
            "workers": {"count": 2},
            "tracking": {"enabled": False},
        }
    )
    done = sightline.train("boards", workspace=place / "workspace", config=config, name=f"ours-{seed}")
    return {"rate": done.images_per_s, "model": done.name, "precision": "auto"}


def train_theirs(place: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Their trainer; what it gave."""
    os.environ |= {"YOLO_CONFIG_DIR": str(place), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    import torch
    from ultralytics.models.yolo.model import YOLO
    from ultralytics.utils import torch_utils

    vars(torch_utils)["NUM_THREADS"] = 2  # By itself it takes one of two cores.
    spent: list[float] = []

    def begin(trainer: Any) -> None:
        assert torch.get_num_threads() == 2
        trainer.began = time.perf_counter()

    def end(trainer: Any) -> None:
        spent.append(time.perf_counter() - trainer.began)

    weights = shutil.copyfile(options.weights, place / "yolov8n.pt")
    model = YOLO(weights)
    model.add_callback("on_train_epoch_start", begin)
    model.add_callback("on_train_epoch_end", end)
    model.train(
        data=str(place / "theirs.yaml"),
        epochs=options.epochs,
        batch=options.batch,
        imgsz=SIZE,
        seed=seed,
        device="cpu",
        project=str(place / "theirs"),
        name=str(seed),
        exist_ok=True,
        plots=False,
        verbose=False,
        mosaic=0.0,
        hsv_h=0.0,
        hsv_s=0.0,
        hsv_v=0.0,
        erasing=0.0,
        fliplr=0.5,
        translate=SHIFT,
        scale=ZOOM,
    )
    images = len(list((place / "yolo" / "images" / "train").iterdir()))
    return {
        "rate": len(spent) * images / sum(spent),
        "model": str(place / "theirs" / str(seed) / "weights" / "last.pt"),
    }


def run_turn(place: Path, options: argparse.Namespace, who: str, found: list[dict[str, Any]]) -> float:
    """A turn of one of them, in a command of its own; scores its model afterwards."""
    seed = len(found)
    command = [sys.executable, __file__, "--who", who, "--seed", str(seed), "--place", str(place)]
    for name in ("weights", "epochs", "batch"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place)
    if done.returncode:
        raise SystemExit(f"{who} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    found.append({**said, **score(place, said["model"], seed)})
    print(f"    {who}, seed {seed}: {found[-1]}", flush=True)
    return float(said["rate"])


def score(place: Path, model: str, seed: int) -> dict[str, float]:
    """Score a model on the test images, by our evaluation."""
    import sightline
    from sightline.metrics.result import DetectionResult

    if model.endswith(".pt"):
        sightline.import_model(model, place / f"imported-{seed}", size=SIZE)
        model = str(place / f"imported-{seed}")
    result = sightline.evaluate(model, "boards", split="test", workspace=place / "workspace", engine="auto")
    assert isinstance(result, DetectionResult)
    return {"map50": result.map50, "map": result.map}


def page(rates: dict[str, Measured], found: dict[str, list[dict[str, Any]]], options: Any, busy: str) -> str:
    """The results as Markdown."""
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    scores = {name: [one["map50"] for one in ones] for name, ones in found.items()}
    rows = [
        [
            name,
            rate_text(rates[name].median),
            rates[name].spread,
            ", ".join(f"{one:.3f}" for one in scores[name]),
            ", ".join(f"{one['map']:.3f}" for one in found[name]),
        ]
        for name in rates
    ]
    ratio = paired_ratio(rates[OURS], rates[THEIRS])
    ours, theirs = (statistics.mean(scores[name]) for name in (OURS, THEIRS))
    table = markdown_table(
        ["contender", "images/s (median)", "lowest to highest", "mAP50 by seed", "mAP by seed"], rows
    )
    noise = max(max(one) - min(one) for one in scores.values())
    return f"""# YOLOv8n on DeepPCB

`make bench-yolo`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}.

{introduction}

{options.train} images, {options.epochs} epochs, batch {options.batch}, {SIZE} pixels; {options.test} test images.

Images per second, ours by theirs: **{ratio:.2f}** (1.4 asked). mAP50: {ours:.3f} against {theirs:.3f} in the mean;
between seeds of one contender it differs by up to {noise:.3f}.

{table}
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "deeppcb")
    parser.add_argument("--weights", type=Path, default=SHARED / "weights" / "yolov8n.pt")
    parser.add_argument("--train", type=int, default=320)
    parser.add_argument("--test", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--who", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.who:
        train = train_ours if options.who == "ours" else train_theirs
        print(json.dumps(train(options.place, options, options.seed)))
        return
    before = load_text()
    found: dict[str, list[dict[str, Any]]] = {OURS: [], THEIRS: []}
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        place = Path(name)
        lay_out(place, options)
        turns = {
            OURS: partial(run_turn, place, options, "ours", found[OURS]),
            THEIRS: partial(run_turn, place, options, "theirs", found[THEIRS]),
        }
        rates = collect_turns(turns, repeats=options.repeats)
    write_page("yolo.md", page(rates, found, options, f"{before} before, {load_text()} after"))


if __name__ == "__main__":
    main()
