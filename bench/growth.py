"""A hundred times more images: time per image, and memory. Run by `make bench-growth`.

`sightline detect` runs a `nano` with fresh weights at 64 pixels over folders of ever more small JPEGs, which are hard
links to a few files; once with one worker in its own process, once with two workers on a Ray of its own. Time per
image is that between the first and the last committed chunk; on Ray, where the second worker starts when the first one
is ready, it is that of the second half of the images, and a small folder may be done before both are at work. Memory is
the most that a process ever had (VmHWM of the kernel), looked at while it runs; the model was compiled before. Then the
same command over the largest folder, in which all is done.

A listing of a million names is planned by a process that does nothing else, from a source that makes names up; for
comparison another process holds all items of the same source in a list.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detected import commits_of, rate_between
from harness import load_text, machine, markdown_table, write_page
from PIL import Image

from sightline.data.synth.shapes import CLASSES, render_shapes
from sightline.detection.item import Item, id_of
from sightline.detection.plan import Planner
from sightline.detection.targets.parquet import ParquetTarget

SIZES, NAMES = (1_000, 10_000, 100_000), (100_000, 1_000_000)
PIXELS, DISTINCT, IN_A_FOLDER = 64, 8, 1_000
SMALL, TURNS_OF_SMALL = 10_000, 3
LOOK_EVERY_S = {False: 0.2, True: 1.0}
MOST_GROWTH = 1.25
MB = 1 << 20
PROCESS, RAY = "1 worker in the process", "2 workers on Ray"


class MadeUpNames:
    """A source of as many names as one likes; there is nothing behind them."""

    name = "made up"

    def __init__(self, count: int) -> None:
        self._count = count

    def items(self) -> Iterator[Item]:
        """One after another."""
        for number in range(self._count):
            uri = f"/photos/2026/camera-{number % 97:02d}/{number // 1000:06d}/picture-{number:09d}.jpg"
            yield Item(id_of(uri), uri, f"{100_000 + number}-1790000000000000000", uri[len("/photos/") :])

    def read(self, item: Item) -> bytes:
        """Nobody reads."""
        raise NotImplementedError

    def is_visible(self) -> bool:
        """Nobody asks."""
        return True


def memory_of(pid: int | str, field_name: str = "VmHWM") -> int:
    """Bytes of a process: the most it ever had, or "VmRSS", what it has now; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field_name}:")), 0)


def actors_below(driver: int) -> list[int]:
    """Process ids of the workers on the Ray that a driver has started."""
    listing = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    running = [line.split(None, 2) for line in listing.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, _ in running}
    found = [int(pid) for pid, _, command in running if command.split()[0].split(".")[0] == "ray::Actor"]
    return [pid for pid in found if _is_below(pid, driver, parents)]


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


@dataclass
class Ran:
    """One command.

    Attributes:
        per_image_s: Without the start.
        driver: Its highest memory in bytes; with one worker that works too.
        workers: Highest memory of each worker on Ray.
        said: The command's JSON.
    """

    seconds: float
    driver: int
    said: dict[str, Any]
    workers: dict[int, int] = field(default_factory=dict)
    per_image_s: float = 0.0


def run(bundle: Path, photos: Path, target: Path, *, on_ray: bool) -> Ran:
    """Type the command, and look at its memory while it runs."""
    command = [sys.executable, "-m", "sightline", "detect", str(bundle), str(photos), "--to", str(target), "--json"]
    command += ["-w", str(target.parent / "workspace")]
    command += ["--workers", "2", "--set", "detect.threads=1"] if on_ray else []
    log = target.with_suffix(".log")
    began, driver, workers = time.monotonic(), 0, dict[int, int]()
    with open(log, "w+b") as errors, open(target.with_suffix(".json"), "w+b") as said:
        process = subprocess.Popen(command, stdout=said, stderr=errors)
        while process.poll() is None:
            driver = max(driver, memory_of(process.pid))
            if on_ray:
                workers |= {pid: memory_of(pid) or workers.get(pid, 0) for pid in actors_below(process.pid)}
            time.sleep(LOOK_EVERY_S[on_ray])
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {log.read_text()[-2000:]}")
    return Ran(time.monotonic() - began, driver, json.loads(target.with_suffix(".json").read_text()), workers)


def measure(bundle: Path, photos: Path, place: Path, *, on_ray: bool, turn: int) -> Ran:
    """A command into a new target."""
    target = place / f"{photos.name}-{'ray' if on_ray else 'process'}-{turn}"
    ran = run(bundle, photos, target, on_ray=on_ray)
    commits = commits_of(target)
    images = sum(rows for _, rows in commits)
    if images != int(photos.name) or ran.said["run"]["images"] != images:
        raise SystemExit(f"{images} rows for {photos.name} images")
    ran.per_image_s = 1 / rate_between(commits, 0.5 if on_ray else 0.0)
    return ran


def make_photos(folder: Path, count: int) -> Path:
    """So many names for a few small JPEGs."""
    originals = folder.parent / "originals"
    if not originals.exists():
        originals.mkdir(parents=True)
        for index in range(DISTINCT):
            Image.fromarray(render_shapes(seed=5, index=index, size=PIXELS).image).save(originals / f"{index}.jpg")
    for number in range(count):
        place = folder / f"{number // IN_A_FOLDER:05d}"
        if number % IN_A_FOLDER == 0:
            place.mkdir(parents=True)
        os.link(originals / f"{number % DISTINCT}.jpg", place / f"{number:07d}.jpg")
    return folder


def make_bundle(place: Path) -> Path:
    """A model that has learnt nothing."""
    from sightline.models.bundle import describe, save_bundle  # Not with torch for those who only plan.
    from sightline.models.factory import make_model

    model = make_model("nano", num_classes=len(CLASSES), size=PIXELS)
    save_bundle(place, model.state_dict(), describe(model, name="nano", classes=CLASSES), {})
    return place


def plan(count: int, place: Path) -> None:
    """In a process of its own: plan so many names, and say what it took."""
    before, began = memory_of("self", "VmRSS"), time.monotonic()
    target = ParquetTarget(place)
    target.open({"id": "made up"})
    planner = Planner(target, MadeUpNames(count))
    images = sum(generation.num_images for generation in planner.generations())
    planner.known.close()
    seconds = time.monotonic() - began
    print(json.dumps({"images": images, "before": before, "peak": memory_of("self"), "seconds": seconds}))


def hold(count: int) -> None:
    """In a process of its own: all items at once."""
    before, began = memory_of("self", "VmRSS"), time.monotonic()
    items = list(MadeUpNames(count).items())
    seconds = time.monotonic() - began
    print(json.dumps({"images": len(items), "before": before, "peak": memory_of("self"), "seconds": seconds}))


def ask(*arguments: str) -> dict[str, float]:
    """What one of those processes said."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def listing_rows(names: list[int], place: Path) -> list[list[str]]:
    """The table of planned listings."""
    rows = []
    for count in names:
        where = place / f"plan-{count}"
        first = ask("--plan", str(count), "--place", str(where))
        again = ask("--plan", str(count), "--place", str(where))
        held = ask("--hold", str(count))
        if first["images"] != count or again["images"] != count:
            raise SystemExit(f"{first['images']:.0f}, then {again['images']:.0f} of {count} names were planned")
        written = sum(file.stat().st_size for file in (where / "plan").iterdir())
        added = [f"{(one['peak'] - one['before']) / MB:.0f} MB" for one in (first, again, held)]
        times = [f"{first['seconds']:.1f} s", f"{again['seconds']:.1f} s"]
        rows.append([f"{count:,}", added[0], times[0], added[1], times[1], added[2], f"{written / MB:.0f} MB"])
        print(f"  planned: {rows[-1]}", flush=True)
    return rows


@dataclass(frozen=True)
class Grown:
    """All turns of one way to run, by size."""

    way: str
    by_size: dict[int, list[Ran]]

    def per_image_ms(self, size: int) -> float:
        """The middle turn."""
        return 1000 * statistics.median(ran.per_image_s for ran in self.by_size[size])

    def driver_mb(self, size: int) -> float:
        """Of the turn that took the most."""
        return max(ran.driver for ran in self.by_size[size]) / MB

    def worker_mb(self, size: int) -> float:
        """Of the worker that took the most."""
        return max((memory for ran in self.by_size[size] for memory in ran.workers.values()), default=0) / MB

    def growths(self) -> dict[str, float]:
        """The largest size by the smallest."""
        small, large = min(self.by_size), max(self.by_size)
        found = {
            "time per image": self.per_image_ms(large) / self.per_image_ms(small),
            "memory of the driver": self.driver_mb(large) / self.driver_mb(small),
        }
        if self.worker_mb(small):
            found["memory of a worker"] = self.worker_mb(large) / self.worker_mb(small)
        return {f"{self.way}, {what}": value for what, value in found.items()}

    def rows(self) -> list[list[str]]:
        """For the table."""
        return [
            [
                self.way,
                f"{size:,}",
                f"{self.per_image_ms(size):.2f}",
                f"{statistics.median(ran.seconds for ran in runs):.1f}",
                f"{self.driver_mb(size):.0f}",
                f"{self.worker_mb(size):.0f}" if self.worker_mb(size) else "-",
            ]
            for size, runs in self.by_size.items()
        ]


def grow(bundle: Path, folders: list[Path], place: Path, *, on_ray: bool) -> Grown:
    """All sizes; small ones several times, for they are over soon."""
    grown = Grown(RAY if on_ray else PROCESS, {})
    for photos in folders:
        turns = TURNS_OF_SMALL if int(photos.name) <= SMALL else 1
        runs = [measure(bundle, photos, place, on_ray=on_ray, turn=turn) for turn in range(turns)]
        grown.by_size[int(photos.name)] = runs
        print(f"  {grown.rows()[-1]}", flush=True)
    return grown


def page(results: list[Grown], again: Ran, listing: list[list[str]], options: argparse.Namespace, busy: str) -> str:
    """The results as Markdown."""
    usual = (tuple(options.sizes), tuple(options.names)) == (SIZES, NAMES)
    command = "`make bench-growth`" if usual else f"`{' '.join(sys.argv)}`, a short form of `make bench-growth`"
    head = f"{command}, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}."
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    growths = [[what, f"**{value:.2f}**"] for grown in results for what, value in grown.growths().items()]
    header = ["workers", "images", "ms an image", "whole command, s", "driver, MB", "largest worker, MB"]
    small, large = f"{min(options.sizes):,}", f"{max(options.sizes):,}"
    planned = ["names", "planning adds", "in", "planning again adds", "in", "a list of all adds", "plan on disk"]
    return f"""# A hundred times more images

{head}

{introduction}

{markdown_table([f"{large} images by {small}", f"measured; no more than {MOST_GROWTH:g} is asked"], growths)}

{markdown_table(header, [row for grown in results for row in grown.rows()])}

Sizes up to {SMALL:,} ran {TURNS_OF_SMALL} times: medians of times, highest memory. With one worker the driver is the
worker. The same command over {large} finished images: {again.said["run"]["images"]} images, **{again.seconds:.1f} s**
with the start, {again.driver / MB:.0f} MB.

## Listings

{markdown_table(planned, listing)}

Memory is what the process has at most, less what it had after its imports.
"""


def main() -> None:
    """Measure, write the page, and fail where it grew by more than asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--names", type=int, nargs="+", default=list(NAMES))
    parser.add_argument("--no-ray", action="store_true", help="leave out the two workers on Ray")
    parser.add_argument("--dry", action="store_true", help="write no page")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        plan(options.plan, options.place)
        return
    if options.hold:
        hold(options.hold)
        return
    before = load_text()
    with tempfile.TemporaryDirectory(prefix="sightline-growth-") as name:
        place = Path(name)
        bundle = make_bundle(place / "model")
        folders = [make_photos(place / "photos" / str(size), size) for size in sorted(options.sizes)]
        measure(bundle, folders[0], place, on_ray=False, turn=-1)  # Compiles the model, which takes memory of its own.
        results = [grow(bundle, folders, place, on_ray=False)]
        again = run(bundle, folders[-1], place / f"{folders[-1].name}-process-0", on_ray=False)
        if again.said["run"]["images"]:
            raise SystemExit(f"a run over finished work did {again.said['run']}")
        if not options.no_ray:
            results.append(grow(bundle, folders, place, on_ray=True))
        listing = listing_rows(options.names, place)
    text = page(results, again, listing, options, f"{before} before, {load_text()} after")
    print(text)
    if not options.dry:
        write_page("growth.md", text)
    grown = {what: value for result in results for what, value in result.growths().items()}
    if missed := [f"{what}: {value:.2f}" for what, value in grown.items() if value > MOST_GROWTH]:
        raise SystemExit(f"more than {MOST_GROWTH:g} times: " + "; ".join(missed))


if __name__ == "__main__":
    main()
