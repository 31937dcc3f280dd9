"""How soon the app answers over a job of a million images. Run by `make bench-app`.

A job of a million rows is laid out as `sightline detect` would: the same columns, chunks of the same sizes, 1.3 boxes
an image in eight classes, times over 30 days. `sightline app` serves it, and a headless Chromium opens the page
Detections and clicks: another class, another kind of image, another score, another page, another order. The time is
that from the click until the app is at rest with all of its pictures sent. What Python itself needs for the same
questions is beside it. Each is done three times with other values, the median counts; all of it runs on the same cores.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import load_text, machine, markdown_table, write_page
from PIL import Image
from playwright.sync_api import TimeoutError

import sightline
from sightline.detection.browse import Kind, Order, Selection
from sightline.detection.item import id_of
from sightline.detection.schema import BOX, IMAGES

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "integration"))

CLASSES = ("short", "open", "spur", "mousebite", "copper", "pin-hole", "scratch", "stain")
FILES, CHUNK, PIXELS = 4_000, 512, 160
PROMISED_S = 2.0
STATE = "document.querySelector('[data-testid=stApp]')?.getAttribute('data-test-script-state')"


def lay_out(root: Path, count: int) -> None:
    """A job in a workspace, and the files that its rows name."""
    photos, job = root / "photos", root / "workspace" / "detections" / "million"
    photos.mkdir(parents=True)
    (job / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(FILES):
        Image.fromarray(rng.integers(0, 255, (PIXELS, PIXELS, 3), np.uint8)).save(
            photos / f"{number:05}.jpg", quality=60
        )
    for start in range(0, count, CHUNK):
        pq.write_table(
            _rows(rng, photos, start, min(CHUNK, count - start)), job / "images" / f"0-{start // CHUNK:06}.parquet"
        )
    said = {"id": "million", "source": str(photos), "model": "boards", "model_version": "1"}
    summary = {"images": count, "rejected": 0, "detections": 0}
    manifest = {"job": said, "classes": CLASSES, "summary": summary, "finished": datetime.now(UTC).isoformat()}
    (job / "job.json").write_text(json.dumps(said))
    (job / "manifest.json").write_text(json.dumps(manifest))


def _rows(rng: np.random.Generator, photos: Path, start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    rejected = [number % 200 == 7 for number in numbers]
    boxes = np.where(rejected, 0, rng.poisson(1.3, count))
    corners = rng.uniform(0, PIXELS - 40, (int(boxes.sum()), 2)).astype(np.float32)
    sides = {"xmin": corners[:, 0], "ymin": corners[:, 1], "xmax": corners[:, 0] + 30, "ymax": corners[:, 1] + 30}
    labels = np.array(CLASSES)[np.minimum(rng.exponential(2, len(corners)).astype(int), len(CLASSES) - 1)]
    scores = rng.beta(5, 3, len(corners)).astype(np.float32)
    columns = {
        "label": pa.array(labels),
        "score": pa.array(scores),
        **{name: pa.array(it) for name, it in sides.items()},
    }
    flat = pa.StructArray.from_arrays([columns[field.name] for field in BOX], fields=list(BOX))
    nested = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], boxes.cumsum()]).astype(np.int32)), flat)
    values: dict[str, object] = {
        "image_id": [id_of(str(number)) for number in numbers],
        "uri": [f"{photos}/{number % FILES:05}.jpg" for number in numbers],
        "status": ["rejected" if bad else "ok" for bad in rejected],
        "stage": ["decode" if bad else None for bad in rejected],
        "reason": ["not an image" if bad else None for bad in rejected],
        "detail": [None] * count,
        "width": [PIXELS] * count,
        "height": [PIXELS] * count,
        "num_detections": pa.array(boxes.astype(np.int32)),
        "boxes": nested.cast(IMAGES.field("boxes").type),
        "version": [f"5000-{(1_790_000_000 + number * 2.6) * 1e9:.0f}" for number in numbers],
        "chunk": [f"0-{start // CHUNK}"] * count,
        "model": ["boards"] * count,
        "model_version": ["1"] * count,
    }
    return pa.table({field.name: values[field.name] for field in IMAGES}, schema=IMAGES)


def ask_python(root: Path) -> dict[str, float]:
    """Seconds that all questions of the page take without app and browser, by what was changed."""
    job = sightline.browse("million", workspace=root / "workspace")
    job.totals()

    def seconds(selection: Selection, order: Order = "any", start: int = 0) -> float:
        began = time.perf_counter()
        job.figures(selection)
        job.images(selection, order=order, start=start)
        return time.perf_counter() - began

    kinds: list[Kind] = ["found", "empty", "rejected"]
    return {
        "class": statistics.median(seconds(Selection(labels=(name,))) for name in CLASSES[:3]),
        "kind of image": statistics.median(seconds(Selection(kind=kind)) for kind in kinds),
        "score": statistics.median(seconds(Selection(lowest=lowest)) for lowest in (0.3, 0.5, 0.7)),
        "page": statistics.median(seconds(Selection(), start=12 * page) for page in (1, 2, 3)),
        "order": statistics.median(seconds(Selection(), order="unsure") for _ in range(3)),
    }


def ask_browser(root: Path, chromium: str) -> dict[str, float]:
    """The same from the click to the picture."""
    from app_browser import (  # type: ignore[import-not-found]
        QUIET_S,
        browsing,
        open_options,
        open_page,
        serving,
        settle,
    )

    with serving(root / "workspace", "--no-token") as (url, _), browsing(chromium) as browser:
        began = time.perf_counter()
        page = open_page(browser, url + "detections")
        times = {"first visit, app just started": [time.perf_counter() - began - QUIET_S]}
        began = time.perf_counter()
        page.goto(url + "detections")
        settle(page)
        times["page opened again"] = [time.perf_counter() - began - QUIET_S]

        def take(name: str, act: Callable[[], object]) -> None:
            began = time.perf_counter()
            act()
            with suppress(TimeoutError):  # It may be done before we look.
                page.wait_for_function(f"() => {STATE} === 'running'", timeout=500)
            settle(page)
            times.setdefault(name, []).append(time.perf_counter() - began - QUIET_S)

        classes = page.get_by_label("Classes", exact=True)
        for name in CLASSES[:3]:
            classes.click()
            take("class", lambda name=name: page.get_by_role("option", name=name, exact=True).click())  # type: ignore[misc]
            page.keyboard.press("Escape")
        page.goto(url + "detections")
        settle(page)
        for kind in ("Found", "Empty", "Rejected"):
            take("kind of image", lambda kind=kind: page.get_by_role("radio", name=kind).click(force=True))  # type: ignore[misc]
        page.goto(url + "detections")
        settle(page)
        slider = page.get_by_role("slider").first
        slider.focus()
        for _ in range(3):
            take("score", lambda: slider.press("ArrowRight"))
        page.goto(url + "detections")
        settle(page)
        for _ in range(3):
            take("page", lambda: page.get_by_role("button", name="Increment").click())
        for order in ("least sure first", "surest first", "most detections first"):
            open_options(page, "Order", order)
            take("order", lambda order=order: page.get_by_role("option", name=order, exact=True).click())  # type: ignore[misc]
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    before = load_text()
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        root = Path(name)
        lay_out(root, options.images)
        python = ask_python(root)
        shown = ask_browser(root, options.chromium)
    rows = [
        [name, f"{seconds:.2f}", f"{python[name]:.2f}" if name in python else ""] for name, seconds in shown.items()
    ]
    slowest = max(seconds for name, seconds in shown.items() if "just started" not in name)
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    table = markdown_table(["what was changed", "in the browser, s", "Python alone, s"], rows)
    text = f"""# The app over a million images

`make bench-app`, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {before} before, {load_text()} after.

{introduction}

The slowest answer took **{slowest:.2f} s** ({PROMISED_S:.0f} s allowed), over {options.images:,} rows.

{table}
"""
    write_page("app.md", text)
    if slowest > PROMISED_S:
        raise SystemExit(f"an answer took {slowest:.2f} s")


if __name__ == "__main__":
    main()
