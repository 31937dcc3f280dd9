"""Exact mAP against pycocotools, on one core. Run by `make bench-metrics`.

Both contenders get boxes that are already in memory, in the form each of them wants, and give the same twelve figures;
ours gives the operating point and the confusion matrix besides.
"""

import argparse
import contextlib
import io
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from harness import load_text, machine, markdown_table, paired_ratio, rate_text, take_turns, write_page
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from sightline.metrics.detection import DetectionMetric
from sightline.structures import Annotation, Detections

IMAGES, FOUND, CLASSES, TRUE = 5_000, 100, 80, 8
REPEATS = 3
AT_LEAST = 15.0

Image = tuple[Annotation, Detections]


def make_images(images: int, *, found: int = FOUND, classes: int = CLASSES, seed: int = 0) -> list[Image]:
    """COCO-like images: half of the found boxes lie near a true one, most of those have its class."""
    rng = np.random.default_rng(seed)
    return [make_image(rng, int(rng.integers(1, 2 * TRUE)), found, classes) for _ in range(images)]


def make_image(rng: np.random.Generator, true: int, found: int, classes: int) -> Image:
    """One image."""
    boxes, labels = random_boxes(rng, true), rng.integers(0, classes, true).astype(np.int32)
    near = rng.integers(0, true, found)
    close = rng.random(found) < 0.5
    moved = boxes[near] + rng.normal(0, 0.08, (found, 4)) * np.tile(boxes[near][:, 2:] - boxes[near][:, :2], 2)
    guesses = np.where(
        close[:, None], np.sort(moved.reshape(-1, 2, 2), axis=1).reshape(-1, 4), random_boxes(rng, found)
    )
    same = close & (rng.random(found) < 0.8)
    found_labels = np.where(same, labels[near], rng.integers(0, classes, found)).astype(np.int32)
    scores = np.clip(rng.random(found) * 0.7 + 0.3 * close, 0, 1)
    truth = Annotation(boxes.astype(np.float32), labels, rng.random(true) < 0.01)
    return truth, Detections(guesses.astype(np.float32), scores.astype(np.float32), found_labels)


def random_boxes(rng: np.random.Generator, number: int) -> NDArray[np.float64]:
    """Boxes of all sizes in an image of 640 x 480."""
    size = np.exp(rng.uniform(np.log(8), np.log(320), (number, 2)))
    corner = rng.random((number, 2)) * (np.array([640, 480]) - size)
    return np.concatenate([corner, corner + size], axis=1)


def to_coco(images: list[Image], classes: int) -> tuple[COCO, COCO]:
    """The same images as pycocotools wants them."""
    truth: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, (true, found) in enumerate(images):
        for box, label, ignore in zip(xywh(true.boxes), true.labels, true.ignore, strict=True):
            row = {"id": len(truth) + 1, "image_id": number, "category_id": int(label), "bbox": box}
            truth.append({**row, "area": box[2] * box[3], "iscrowd": int(ignore)})
        for box, label, score in zip(xywh(found.boxes), found.labels, found.scores, strict=True):
            results.append({"image_id": number, "category_id": int(label), "bbox": box, "score": float(score)})
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(len(images))],
        "categories": [{"id": label} for label in range(classes)],
        "annotations": truth,
    }
    coco.createIndex()
    return coco, coco.loadRes(results)


def xywh(boxes: NDArray[Any]) -> list[list[float]]:
    """Corner and size, in float64."""
    corners = boxes.astype(np.float64)
    corners[:, 2:] -= corners[:, :2]
    rows: list[list[float]] = corners.tolist()
    return rows


def contenders(images: list[Image], classes: int) -> tuple[dict[str, Callable[[], int]], dict[str, Any]]:
    """What takes turns, and where the last figures of each are put."""
    figures: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        truth, results = to_coco(images, classes)

    def pycocotools() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = COCOeval(truth, results, "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        figures["pycocotools"] = evaluation.stats.tolist()
        return len(images)

    def sightline() -> int:
        metric = DetectionMetric([str(label) for label in range(classes)])
        for number, (true, found) in enumerate(images):
            metric.update(number, true, found)
        r = metric.compute()
        precision = [r.map, r.map50, r.map75, r.map_small, r.map_medium, r.map_large]
        figures["sightline"] = [*precision, r.ar1, r.ar10, r.ar100, r.ar_small, r.ar_medium, r.ar_large]
        return len(images)

    return {"pycocotools": pycocotools, "sightline": sightline}, figures


def measure(images: int = IMAGES, *, repeats: int = REPEATS) -> float:
    """How many times as fast as pycocotools, measured in turns; writes the page."""
    before = load_text()
    runs, figures = contenders(make_images(images), CLASSES)
    measured = take_turns(runs, repeats=repeats)
    ratio = paired_ratio(measured["sightline"], measured["pycocotools"])
    apart = float(np.abs(np.subtract(figures["sightline"], figures["pycocotools"])).max())
    rows = [[name, f"{images / m.median:.2f} s", rate_text(m.median), m.spread] for name, m in measured.items()]
    table = markdown_table(["evaluation", "time (median)", "images/s (median)", "lowest to highest"], rows)
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    turns = "1 turn" if repeats == 1 else f"{repeats} turns"
    head = f"`make bench-metrics`, {datetime.now(UTC):%Y-%m-%d}, {machine()}, on one of the cores; {before} before."
    text = (
        f"# Exact mAP\n\n{head}\n\n"
        f"{images:,} images x {FOUND} found boxes x {CLASSES} classes, {turns}, one after the other: "
        f"**{ratio:.0f} times as fast as pycocotools** (at least {AT_LEAST:.0f} is asked), figures at most {apart:.1g} "
        f"apart. {introduction}\n\n{table}"
    )
    write_page("metrics.md", text)
    print(table, f"ratio {ratio:.1f}, figures at most {apart:.2g} apart", sep="\n")
    return ratio


def main() -> None:
    """Measure, and fail when the aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    ratio = measure(options.images, repeats=options.repeats)
    if ratio < AT_LEAST:
        raise SystemExit(f"only {ratio:.1f} times as fast as pycocotools; expected at least {AT_LEAST:.0f}")


if __name__ == "__main__":
    main()
