"""Photos by the second: `sightline detect`, the notebook's pipeline, and the limit. Run by `make bench-detect`.

All contenders take turns, each a command of its own, on the same JPEG photos (those of COCO val2017 in shared/, again
and again under other names) with the same weights, YOLOv8n at 640 on the CPU:

- the notebook's own pipeline, `shared/baselines/seed_detect.py`: Ray Data reads and decodes, one or two actors run the
  Ultralytics model, JSON strings go to Parquet;
- ours: `sightline detect` into Parquet, one worker with a thread a core, and two workers on a Ray of its own with one
  thread each; the weights are an ONNX file that Ultralytics has exported from the same file;
- ours in bfloat16, for those who ask for it: quicker, and outside the tolerance of engines;
- the limit: a plain loop with the same engine, processes and threads over photos that lie decoded and fitted in memory.

The notebook's environment is not ours: `uv venv /tmp/yolo-venv && uv pip install --python /tmp/yolo-venv/bin/python
ultralytics 'ray[data]' pandas torch torchvision onnx`. The ONNX file is made there by
`yolo export model=yolov8n.pt format=onnx dynamic=True imgsz=640 device=cpu`.
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from detected import commits_of, rate_between
from harness import Measured, collect_turns, load_text, machine, markdown_table, paired_ratio, rate_text, write_page

from sightline.data.parallel import num_cores

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
IMAGES, TURNS, THRESHOLD, SAME_IOU = 1024, 3, 0.25, 0.5
SMALL_SHARE = 8
ONE, TWO = f"ours, 1 worker x {num_cores()} threads", "ours, 2 workers on Ray x 1 thread"
QUICK = f"{ONE}, --precision bfloat16"
LIMIT_ONE, LIMIT_TWO = f"limit, 1 process x {num_cores()} threads", "limit, 2 processes x 1 thread"
NOTEBOOK = {actors: f"notebook, {actors} actor{'s' * (actors > 1)}" for actors in (1, 2)}

Box = tuple[str, float, list[float]]
"""Label, score and corners."""
Boxes = dict[str, list[Box]]
"""By file name."""


@dataclass
class Side:
    """What is measured beside the rate of a turn.

    Attributes:
        steady: Images per second without the start.
        second_half: Those over the second half of the images, when all workers are surely at work.
        whole: Those of the whole command, where the rate of the turn is another.
        first_commit_s: From the command to the first committed chunk.
        found: Where the last turn left what it found.
    """

    steady: list[float] = field(default_factory=list)
    second_half: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    first_commit_s: list[float] = field(default_factory=list)
    found: Path = Path()


@dataclass(frozen=True)
class Bench:
    """Where everything is."""

    place: Path
    options: argparse.Namespace

    @property
    def photos(self) -> Path:
        """All photos."""
        return self.place / "photos"

    @property
    def few(self) -> Path:
        """Some of them, to tell the start from the work."""
        return self.place / "few"

    @property
    def bundle(self) -> Path:
        """Ours."""
        return self.place / "yolo"

    @property
    def weights(self) -> Path:
        """The notebook's, as a copy: nothing is written beside the original."""
        return self.place / "yolov8n.pt"

    @property
    def workspace(self) -> Path:
        """Ours; compiled forms stay in it from turn to turn."""
        return self.place / "workspace"


def lay_out(bench: Bench) -> None:
    """Photos under many names, and the model in both forms."""
    import sightline

    originals = sorted(bench.options.photos.glob("*.jpg"))
    for folder in ("originals", bench.photos, bench.few):
        (bench.place / folder).mkdir()
    for number in range(bench.options.images):
        photo = originals[number % len(originals)]
        copy = bench.place / "originals" / photo.name
        if not copy.exists():
            shutil.copyfile(photo, copy)
        name = f"{number // len(originals)}-{photo.name}"
        os.link(copy, bench.photos / name)
        if number < bench.options.images // SMALL_SHARE:
            os.link(copy, bench.few / name)
    shutil.copyfile(bench.options.weights, bench.weights)
    sightline.import_model(bench.options.onnx, bench.bundle)


def run_notebook(bench: Bench, photos: Path, out: Path, actors: int) -> tuple[float, float]:
    """The notebook's pipeline; seconds by its own clock, and of the whole command."""
    command = [bench.options.notebook_python, bench.options.notebook, photos, bench.weights, out, actors]
    ray = bench.place / "ray"  # A cluster that others have started here is not its own.
    quiet = {"YOLO_CONFIG_DIR": str(bench.place), "YOLO_OFFLINE": "true", "RAY_TMPDIR": str(ray)}
    ray.mkdir(exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env={**os.environ, **quiet}, cwd=bench.place
    )
    found = re.search(r"(\d+) images in ([0-9.]+) s", done.stdout)
    if done.returncode or not found or int(found[1]) != len(list(photos.iterdir())):
        raise SystemExit(f"the notebook's pipeline failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return float(found[2]), time.monotonic() - began


def notebook_turn(bench: Bench, actors: int, side: Side) -> float:
    """Images per second by the notebook's own clock, from the start of Ray to the last row."""
    some = bench.options.images // SMALL_SHARE
    out = Path(tempfile.mkdtemp(prefix="notebook-", dir=bench.place))
    few_s, _ = run_notebook(bench, bench.few, out / "few", actors)
    own_s, whole_s = run_notebook(bench, bench.photos, out / "all", actors)
    images = bench.options.images
    side.whole.append(images / whole_s)
    # Where the machine was busy with other things, fewer photos may take longer than all of them.
    side.steady.append((images - some) / (own_s - few_s) if own_s > few_s else math.nan)
    side.found = out / "all"
    return float(images / own_s)


def our_turn(bench: Bench, flags: list[str], side: Side) -> float:
    """Images per second of the whole command."""
    target = Path(tempfile.mkdtemp(prefix="ours-", dir=bench.place)) / "found"
    command = [sys.executable, "-m", "sightline", "detect", str(bench.bundle), str(bench.photos), "--to", str(target)]
    command += ["-w", str(bench.workspace), "--threshold", str(THRESHOLD), "--json", *flags]
    began, clock = time.time(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    whole_s = time.monotonic() - clock
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    commits = commits_of(target)
    if sum(rows for _, rows in commits) != bench.options.images:
        raise SystemExit(f"{target} has not one row for each of {bench.options.images} photos")
    side.first_commit_s.append(commits[0][0] - began)
    side.steady.append(rate_between(commits))
    side.second_half.append(rate_between(commits, 0.5))
    side.found = target
    return float(bench.options.images / whole_s)


def limit_turn(bench: Bench, processes: int, threads: int) -> float:
    """Images per second of plain loops, all at once."""
    own = ["--limit", str(threads), "--place", str(bench.place)]
    images = ["--images", str(bench.options.images // processes), "--photos", str(bench.options.photos)]
    loops = [
        subprocess.Popen([sys.executable, __file__, *own, *images], stdin=-1, stdout=-1, text=True)
        for _ in range(processes)
    ]
    for loop in loops:
        assert loop.stdout is not None
        if loop.stdout.readline().strip() != "ready":
            raise SystemExit("a plain loop did not start")
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("go\n")
        loop.stdin.flush()
    return sum(float(loop.communicate()[0]) for loop in loops)


def loop_in_memory(bench: Bench, threads: int) -> None:
    """One plain loop: photos are decoded and fitted before the clock starts. Says its images per second."""
    from sightline.config import DetectConfig
    from sightline.data.decode import MAX_PIXELS
    from sightline.data.memory import keep_freed_memory
    from sightline.engines.opening import open_predictor
    from sightline.engines.settings import resolve_inference
    from sightline.models.bundle import open_bundle

    bundle = open_bundle(bench.bundle)
    config = DetectConfig(threads=threads, threshold=THRESHOLD)
    settings = resolve_inference(bundle, config, device="cpu", max_pixels=MAX_PIXELS, concurrent=True)
    predictor = open_predictor(bundle, settings, min_score=THRESHOLD, cache=bench.workspace / "compiled")
    keep_freed_memory()  # As workers do.
    photos = sorted(bench.options.photos.glob("*.jpg"))[: bench.options.images]
    fitted = [predictor.prepare_encoded(photo.read_bytes()) for photo in photos]
    shapes = {image.canvas.shape: image for image in fitted}.values()
    with ThreadPoolExecutor(settings.streams) as pool:

        def find(number: int) -> None:
            predictor.detect([fitted[number % len(fitted)]], THRESHOLD)

        for _ in pool.map(lambda one: predictor.detect([one], THRESHOLD), [*shapes] * settings.streams):
            pass
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        for _ in pool.map(find, range(bench.options.images)):
            pass
    print(bench.options.images / (time.perf_counter() - began), flush=True)


def read_ours(target: Path) -> Boxes:
    """What our last turn found."""
    found: Boxes = {}
    for row in pq.read_table(target / "images", columns=["uri", "boxes"]).to_pylist():
        corners = ("xmin", "ymin", "xmax", "ymax")
        found[Path(row["uri"]).name] = [
            (box["label"], box["score"], [box[name] for name in corners]) for box in row["boxes"]
        ]
    return found


def read_notebook(rows: list[tuple[str, str]]) -> Boxes:
    """What Ultralytics said of each path, as JSON."""
    return {
        Path(path).name: [
            (box["name"], box["confidence"], [box["box"][corner] for corner in ("x1", "y1", "x2", "y2")])
            for box in json.loads(said)
        ]
        for path, said in rows
    }


def ask_ultralytics(bench: Bench) -> Boxes:
    """Ultralytics itself on the files, one after another: as it reads and fits them."""
    code = (
        "import json, sys; from ultralytics import YOLO; "
        "found = YOLO(sys.argv[1])(sys.argv[2], stream=True, device='cpu', verbose=False); "
        "print(json.dumps([[one.path, one.to_json()] for one in found]))"
    )
    command = [bench.options.notebook_python, "-c", code, str(bench.weights), str(bench.place / "originals")]
    quiet = {"YOLO_CONFIG_DIR": str(bench.place), "YOLO_OFFLINE": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet}, cwd=bench.place)
    if done.returncode:
        raise SystemExit(f"Ultralytics failed: {done.stderr[-2000:]}")
    return {f"0-{name}": boxes for name, boxes in read_notebook(json.loads(done.stdout.splitlines()[-1])).items()}


def num_matched(ones: Boxes, others: Boxes) -> int:
    """Boxes of the one that have a counterpart of their own in the other: the same label, and they overlap."""
    return sum(_matched(boxes, others.get(name, [])) for name, boxes in ones.items())


def _matched(ones: list[Box], others: list[Box]) -> int:
    left, count = list(others), 0
    for one in sorted(ones, key=lambda box: -box[1]):
        best = max(
            (other for other in left if other[0] == one[0]), key=lambda other: _iou(one[2], other[2]), default=None
        )
        if best is not None and _iou(one[2], best[2]) >= SAME_IOU:
            left.remove(best)
            count += 1
    return count


def _iou(one: list[float], other: list[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def contenders(bench: Bench, sides: dict[str, Side]) -> dict[str, Callable[[], float]]:
    """Everyone who takes turns."""
    runs: dict[str, Callable[[], float]] = {
        name: partial(notebook_turn, bench, actors, sides[name]) for actors, name in NOTEBOOK.items()
    }
    runs[ONE] = partial(our_turn, bench, [], sides[ONE])
    runs[QUICK] = partial(our_turn, bench, ["--precision", "bfloat16"], sides[QUICK])
    runs[TWO] = partial(our_turn, bench, ["--workers", "2", "--set", "detect.threads=1"], sides[TWO])
    runs[LIMIT_ONE] = partial(limit_turn, bench, 1, num_cores())
    runs[LIMIT_TWO] = partial(limit_turn, bench, 2, 1)
    return runs


@dataclass(frozen=True)
class Ratio:
    """What was asked for, and what was measured."""

    name: str
    measured: float
    asked: float | None = None
    is_time: bool = False

    @property
    def is_missed(self) -> bool:
        """Whether less was measured than asked for, or a longer time."""
        if self.asked is None:
            return False
        return self.measured >= self.asked if self.is_time else self.measured < self.asked

    def row(self) -> list[str]:
        """For the table."""
        unit = " s" if self.is_time else ""
        sign = "under " if self.is_time else "at least "
        asked = "-" if self.asked is None else f"{sign}{self.asked:g}{unit}"
        measured = "not to be told" if math.isnan(self.measured) else f"**{self.measured:.2f}{unit}**"
        return [self.name, measured, asked]


def ratios(found: dict[str, Measured], sides: dict[str, Side]) -> list[Ratio]:
    """All that is asked for, and the same without the start or with it."""

    def steady(name: str) -> Measured:
        return Measured(name, sides[name].steady)

    def later(name: str) -> Measured:
        return Measured(name, sides[name].second_half)

    notebooks = {name: Measured(name, sides[name].whole) for name in NOTEBOOK.values()}
    best = max(notebooks.values(), key=lambda measured: measured.median)
    return [
        Ratio(f"{ONE} by the {best.name}, whole commands", paired_ratio(found[ONE], best), 2.5),
        Ratio(f"{QUICK} by the {best.name}, whole commands", paired_ratio(found[QUICK], best)),
        Ratio(f"{TWO} by the {best.name}, whole commands", paired_ratio(found[TWO], best)),
        Ratio(f"{ONE} by the {best.name}, both without the start", paired_ratio(steady(ONE), steady(best.name))),
        Ratio(f"{ONE} by the {LIMIT_ONE}, first to last commit", paired_ratio(steady(ONE), found[LIMIT_ONE]), 0.85),
        Ratio("the same, second half of the images", paired_ratio(later(ONE), found[LIMIT_ONE])),
        Ratio("the same, whole command", paired_ratio(found[ONE], found[LIMIT_ONE])),
        Ratio(f"{TWO} by the {LIMIT_TWO}, first to last commit", paired_ratio(steady(TWO), found[LIMIT_TWO]), 0.85),
        Ratio("the same, second half of the images", paired_ratio(later(TWO), found[LIMIT_TWO])),
        Ratio("the same, whole command", paired_ratio(found[TWO], found[LIMIT_TWO])),
        Ratio(f"{ONE}: command to first committed chunk", statistics.median(sides[ONE].first_commit_s), 6.0, True),
        Ratio("the same in the first turn, with nothing compiled yet", sides[ONE].first_commit_s[0], 6.0, True),
    ]


def rate_rows(found: dict[str, Measured], sides: dict[str, Side]) -> list[list[str]]:
    """The table of rates."""
    rows = []
    for name, measured in found.items():
        side = sides.get(name, Side())
        whole = Measured(name, side.whole or measured.rates) if name in sides else None
        middle = [statistics.median(rates) if rates else None for rates in (side.steady, side.second_half)]
        first = f"{statistics.median(side.first_commit_s):.1f} s" if side.first_commit_s else "-"
        steady = measured if whole is None else None
        rows.append(
            [
                name,
                f"{rate_text(whole.median)} ({whole.spread})" if whole else "-",
                f"{rate_text(steady.median)} ({steady.spread})" if steady else _text(middle[0]),
                _text(middle[1]),
                first,
            ]
        )
    return rows


def _text(rate: float | None) -> str:
    return "-" if rate is None or math.isnan(rate) else rate_text(rate)


def compared(bench: Bench, sides: dict[str, Side]) -> str:
    """What was found in the photos, each counted once; as Markdown."""
    notebook = pq.read_table(sides[NOTEBOOK[1]].found, columns=["path", "result"]).to_pylist()
    everything: dict[str, Boxes] = {
        "ours": read_ours(sides[ONE].found),
        "ours in bfloat16": read_ours(sides[QUICK].found),
        "the notebook": read_notebook([(row["path"], row["result"]) for row in notebook]),
        "Ultralytics on the files": ask_ultralytics(bench),
    }
    once = {who: {k: v for k, v in boxes.items() if k.startswith("0-")} for who, boxes in everything.items()}
    ours = once["ours"]
    rows = []
    for who, boxes in once.items():
        total = sum(map(len, boxes.values()))
        matched = num_matched(boxes, ours)
        rows.append([who, str(len(boxes)), str(total), "-" if who == "ours" else f"{matched} ({matched / total:.1%})"])
    same = read_ours(sides[TWO].found) == everything["ours"]
    words = "exactly what one worker found" if same else "not exactly what one worker found"
    return (
        f"{markdown_table(['who', 'photos', f'detections from {THRESHOLD} on', 'of them also found by ours'], rows)}"
        f"\n\nFound by both: the same label, and an overlap (IoU) of at least {SAME_IOU}. Two workers found {words}. "
        "Ultralytics takes arrays for BGR and the notebook hands it RGB, so it looks at photos with red and blue "
        "swapped; it also pads photos of different shapes to one square for a batch. On the files it reads colours "
        "rightly and pads as little as ours; why those two still differ was not looked into."
    )


def page(found: dict[str, Measured], sides: dict[str, Side], bench: Bench, asked: list[Ratio], busy: str) -> str:
    """The results as Markdown."""
    options = bench.options
    command = (
        "`make bench-detect`"
        if (options.images, options.repeats) == (IMAGES, TURNS)
        else f"`{' '.join(sys.argv)}`, a short form of `make bench-detect`"
    )
    head = f"{command}, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy}."
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    header = ["contender", "whole command (lowest to highest)", "without the start", "second half", "to first commit"]
    return f"""# Photos by the second

{head}

{introduction}

{options.images} photos, {options.repeats} turns; medians, images per second. Ratios are the median over turns of ours
by theirs in the same turn.

{markdown_table(["ratio", "measured", "asked"], [ratio.row() for ratio in asked])}

{markdown_table(header, rate_rows(found, sides))}

Without the start: ours from the first committed chunk to the last, by the times of the files; of two workers on Ray the
second one only starts when the first is ready, so some of the start is still in it, and the second half of the images
has none. The notebook has no such times: its figure is by the difference between all photos and {SMALL_SHARE} times
fewer. For the limit, nothing but the loop is timed.

## What was found

{compared(bench, sides)}
"""


def main() -> None:
    """Measure, write the page, and fail where less was measured than asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, default=SHARED / "data" / "coco_val128" / "images")
    parser.add_argument("--weights", type=Path, default=SHARED / "weights" / "yolov8n.pt")
    parser.add_argument("--notebook", type=Path, default=SHARED / "baselines" / "seed_detect.py")
    parser.add_argument("--notebook-python", type=Path, default=Path("/tmp/yolo-venv/bin/python"))
    parser.add_argument("--onnx", type=Path, default=Path("/tmp/yolo/yolov8n.onnx"))
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=TURNS)
    parser.add_argument("--dry", action="store_true", help="write no page")
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.limit:
        loop_in_memory(Bench(options.place, options), options.limit)
        return
    for needed in (options.notebook_python, options.onnx):
        if not needed.exists():
            raise SystemExit(f"{needed} is not there: the first lines of {__file__} say how it is made")
    before, sides = load_text(), {name: Side() for name in (*NOTEBOOK.values(), ONE, QUICK, TWO)}
    with tempfile.TemporaryDirectory(prefix="sl-") as name:  # Short, for the sake of Ray's sockets.
        bench = Bench(Path(name), options)
        lay_out(bench)
        found = collect_turns(contenders(bench, sides), repeats=options.repeats)
        asked = ratios(found, sides)
        text = page(found, sides, bench, asked, f"{before} before, {load_text()} after")
    print(text)
    if not options.dry:
        write_page("detect.md", text)
    if missed := [f"{ratio.name}: {ratio.measured:.2f}" for ratio in asked if ratio.is_missed]:
        raise SystemExit("less than was asked for: " + "; ".join(missed))


if __name__ == "__main__":
    main()
