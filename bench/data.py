"""Ingest against the notebook way, and the training reader against a plain loop. Run by `make bench-data`.

The notebook way: read each file, encode it as base64, collect rows in pandas, write one table. It checks nothing.
"""

import base64
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pandas as pd
from harness import machine, markdown_table, paired_ratio, take_turns, write_page

import sightline
from sightline.config import LoaderConfig
from sightline.data.decode import decode
from sightline.data.loader import Loader, LoadOptions

SMALL, LARGE = 2_000, 20_000
REPEATS = 5


def make_source(directory: Path, images: int) -> Path:
    """Synthetic boards as YOLO files; beyond 2,000 the same bytes again under other names."""
    made = directory / "boards"
    if not made.exists():
        sightline.synth("boards", str(directory / "dataset"), images=SMALL, seed=7)
        sightline.export_dataset(directory / "dataset", made, format="yolo")
    target = directory / f"source-{images}"
    for copy in range(images // SMALL):
        for path in sorted(made.glob("*/*/*")):
            place = target / path.relative_to(made).parent / f"{copy:02d}-{path.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(path)
    shutil.copy(made / "data.yaml", target)
    return target


def notebook_rows(source: Path) -> Iterator[tuple[str, str, list[list[float]]]]:
    """(file name, base64 text, boxes) of every image."""
    for path in sorted(source.glob("images/*/*")):
        text = base64.b64encode(path.read_bytes()).decode()
        labels = Path(str(path.with_suffix(".txt")).replace("/images/", "/labels/"))
        yield path.name, text, [[float(word) for word in line.split()] for line in labels.read_text().splitlines()]


def notebook_row_an_image(source: Path, out: Path) -> int:
    """One row an image, box columns as lists."""
    rows = []
    for name, text, boxes in notebook_rows(source):
        corners = {key: [box[i] for box in boxes] for i, key in enumerate(("CLASS", "XMIN", "YMIN", "XMAX", "YMAX"))}
        rows.append({"FILENAME": name, "IMAGE_DATA": text, **corners})
    pd.DataFrame(rows).to_parquet(out)
    return len(rows)


def notebook_row_a_box(source: Path, out: Path) -> int:
    """One row a box, as the Snowflake guide has it: the image's text is repeated for every box."""
    rows, images = [], 0
    for name, text, boxes in notebook_rows(source):
        images += 1
        rows += [(name, text, *box) for box in boxes]
    pd.DataFrame(rows, columns=["FILENAME", "IMAGE_DATA", "CLASS", "XMIN", "YMIN", "XMAX", "YMAX"]).to_parquet(out)
    return images


def ingest(source: Path, out: Path, verify: str) -> int:
    """Sightline's way, on all cores."""
    return sightline.ingest(source, str(out), replace=True, verify=verify).num_images


def bench_ingest(directory: Path) -> str:
    """Speed and bytes of the four ways."""
    source = make_source(directory, LARGE)
    contenders: dict[str, Callable[[], int]] = {
        "notebook, one row an image": lambda: notebook_row_an_image(source, directory / "image.parquet"),
        "sightline, every image decoded": lambda: ingest(source, directory / "full", "full"),
        "sightline --verify header": lambda: ingest(source, directory / "header", "header"),
    }
    found = take_turns(contenders, repeats=REPEATS)
    few = make_source(directory, SMALL)
    boxes = take_turns(
        {"notebook, one row a box": lambda: notebook_row_a_box(few, directory / "box.parquet")}, repeats=1
    )
    notebook = found["notebook, one row an image"]
    rows = [
        [m.name, f"{m.median:,.0f}", m.spread, f"{paired_ratio(m, notebook):.2f}" if m.name in found else "-"]
        for m in (found | boxes).values()
    ]
    text = markdown_table(["way", "images/s (median)", "lowest to highest", "ratio to the first"], rows)
    raw = sum(path.stat().st_size for path in source.glob("images/*/*"))
    stored = sum(path.stat().st_size for path in (directory / "full").iterdir())
    return (
        f"{LARGE:,} images, {REPEATS} turns (the form with one row a box: {SMALL:,} images, once).\n\n{text}\n\n"
        f"Bytes on disk: the source images {raw:,}; the dataset {stored:,}, **{stored / raw:.3f}** times; base64 text "
        f"is 1.33 times (before whatever compression the table adds).\n"
    )


def peak_megabytes(source: Path, out: Path) -> dict[str, float]:
    """Peak resident memory of one ingest in a fresh process: of the driver and of its largest worker."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", str(source), str(out)], check=True, capture_output=True, text=True
    )
    return {key: float(value) for key, value in json.loads(done.stdout).items()}


def print_peak(source: str, out: str) -> None:
    """The child of `peak_megabytes`."""
    sightline.ingest(source, out, replace=True)
    # Not ru_maxrss for the driver: that remembers what its parent had when it forked.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"driver": int(status["VmHWM"].split()[0]) / 1024, "largest worker": workers / 1024}))


def bench_memory(directory: Path) -> str:
    """Peak memory for few and many images."""
    peaks = {}
    for images in (SMALL, LARGE):
        place = directory / f"memory-{images}"
        peaks[images] = peak_megabytes(make_source(place, images), place / "out")
    rows = [
        [who, *(f"{peaks[n][who]:,.0f} MB" for n in peaks), f"{peaks[LARGE][who] / peaks[SMALL][who]:.2f}"]
        for who in ("driver", "largest worker")
    ]
    return markdown_table(["peak memory", f"{SMALL:,} images", f"{LARGE:,} images", "ratio"], rows)


def bench_reader(directory: Path) -> str:
    """The training reader against decoding the same bytes from memory, in a process that does nothing else."""
    print("the training reader, in a process of its own", flush=True)
    done = subprocess.run(
        [sys.executable, __file__, "--reader", str(directory)], check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, flush=True)
    return done.stdout[done.stdout.index("| threads") :]


def print_reader(name: str) -> None:
    """The child of `bench_reader`."""
    directory = Path(name)
    dataset = sightline.open_dataset(directory / "dataset")
    encoded = [bytes(sample.image) for sample in dataset]

    def plain(threads: int) -> int:
        if threads == 0:
            for data in encoded:
                decode(data)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(decode, encoded):
                    pass
        return len(encoded)

    def reader(threads: int) -> int:
        loader = Loader(dataset, LoadOptions(8, LoaderConfig(threads=threads)))
        return sum(len(batch.images) for batch in loader.batches(epoch=0))

    rows = []
    for threads in (0, 1, 2):
        name = f"{threads} threads" if threads else "in the caller's thread"
        contenders = {f"plain, {name}": partial(plain, threads), f"reader, {name}": partial(reader, threads)}
        theirs, ours = take_turns(contenders, repeats=REPEATS).values()
        rows.append([name, f"{theirs.median:,.0f}", f"{ours.median:,.0f}", f"{paired_ratio(ours, theirs):.3f}"])
    header = ["threads", "plain loop, images/s", "reader in shuffled order, images/s", "ratio"]
    print(markdown_table(header, rows))


def main() -> None:
    """Measure everything and write the page."""
    with tempfile.TemporaryDirectory(prefix="sightline-bench-") as name:
        directory = Path(name)
        ingested = bench_ingest(directory)
        memory = bench_memory(directory)
        reader = bench_reader(directory)
    write_page(
        "data.md",
        f"# Ingest and reading\n\n`make bench-data`, {datetime.now(UTC):%Y-%m-%d}, {machine()}. Synthetic boards of "
        f"640 x 640 as YOLO files. Contenders take turns in one run; ratios are medians over the turns.\n\n"
        f"## Ingest against the notebook way\n\n{ingested}\n## Memory\n\n{memory}\n\n"
        f"## The training reader\n\nShuffled, in batches of 8, from the dataset on disk, against decoding the same "
        f"bytes from a list in memory.\n\n{reader}\n",
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--peak", source, out]:
            print_peak(source, out)
        case ["--reader", directory]:
            print_reader(directory)
        case _:
            main()
