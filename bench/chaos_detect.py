"""Kill the driver, the actors and a node of real detection jobs, for three kinds of targets. Run by `make chaos`.

The real command runs a small `nano` over a folder of synthetic shapes with three workers on a Ray cluster of three
nodes on this machine. Some of the images are unreadable, some show nothing. Again and again, when a random share of the
images has its rows, the driver or an actor chosen at random is killed with SIGKILL, and once a whole node; some drivers
die again while they start. After the driver's end the same command is typed again at once. In the end the target must
hold what a run that was never disturbed has written: the same images once each, with the same status and reason, and
the same boxes. The same command once more must find nothing to do.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import sqlalchemy
from detected import (
    PIXEL_TOLERANCE,
    SCORE_TOLERANCE,
    DuckDBPlace,
    Found,
    Loss,
    ParquetPlace,
    Place,
    PostgresPlace,
    compare,
    postgres,
    read,
)
from harness import command, load_text, machine, markdown_table, write_page
from overfitted import config
from PIL import Image

import sightline
from sightline.data.synth.shapes import render_shapes

IMAGES, KILLS, SIZE, WORKERS, CHUNK = 2000, 10, 96, 3, 10
TRAIN_IMAGES, EPOCHS = 240, 12
UNREADABLE_EVERY, BLANK_EVERY = 20, 7
TIMEOUT_S, POLL_S = 300, 0.1
LATEST_SHARE, LATEST_HASTY_S, HASTY_SHARE = 0.9, 6.0, 0.4
TARGETS = ("parquet", "duckdb", "postgresql")


@dataclass
class Cluster:
    """Three Ray nodes of one CPU each on this machine, and a head without any."""

    nodes: list[Any] = field(default_factory=list)
    cluster: Any = None

    def __enter__(self) -> "Cluster":
        os.environ.setdefault("RAY_worker_niceness", "0")  # 15 gives way to everything else on the machine.
        from ray.cluster_utils import Cluster as RayCluster

        self.cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(WORKERS)]
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()

    @property
    def address(self) -> str:
        """Where drivers connect to."""
        return str(self.cluster.address)

    def actors(self) -> list[int]:
        """Process ids of the detection workers on this cluster, and on no other of this machine."""
        listing = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        running = [line.split(None, 2) for line in listing.splitlines()[1:]]
        nodes = {pid for pid, _, command in running if "raylet/raylet" in command and self.address in command}
        return [int(pid) for pid, parent, command in running if parent in nodes and re.match(r"ray::Actor\b", command)]

    def kill_node(self, dice: random.Random) -> None:
        """End a node at once, as if its machine had lost power, and bring up another in its place."""
        node = self.nodes.pop(dice.randrange(len(self.nodes)))
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1))


class Run:
    """A detection job by the real command, into a target of its own."""

    def __init__(self, workspace: Path, model: str, place: Place, cluster: Cluster, *, log: str) -> None:
        self.place, self.starts = place, 0
        flags = ["--to", place.to, "-w", str(workspace), "--workers", str(WORKERS), "--address", cluster.address]
        flags += ["--set", f"detect.chunk={CHUNK}", "--json"]
        self._command = [sys.executable, "-m", "sightline", "detect", model, str(workspace / "photos"), *flags]
        self._said, self._log = workspace / "said.json", workspace / log
        self.process: subprocess.Popen[bytes] | None = None
        self._done = 0

    def start(self) -> None:
        """Type the command."""
        self.starts += 1
        with open(self._said, "wb") as said, open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=said, stderr=log)

    def kill(self) -> None:
        """End the driver."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        """Wait for the end, which must be a good one."""
        assert self.process is not None
        if self.process.wait(TIMEOUT_S):
            raise Loss(f"the command failed with {self.process.returncode}: {self._log.read_text()[-2000:]}")

    def said(self) -> dict[str, Any]:
        """The JSON that the last start has printed."""
        return dict(json.loads(self._said.read_text()))

    def has_ended(self) -> bool:
        """Whether the command has come to its end, a good one."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        self.finish()
        return True

    def done(self) -> int:
        """Images that have their rows, as any reader sees it."""
        try:
            (count,) = self.place.ask("select count(*) from images")[0]
        except (duckdb.Error, sqlalchemy.exc.ProgrammingError):
            return self._done  # Nothing is there yet, or the driver has the file open just now.
        if count < self._done:
            raise Loss(f"there were {self._done} rows, and now there are {count}")
        self._done = int(count)
        return self._done

    def reaches(self, images: int) -> bool:
        """Wait until so many images have their rows; false if the command ended first."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.done() < images:
            if self.has_ended():
                return False
            if time.monotonic() > deadline:
                raise Loss(f"nothing new after {self._done} images in {TIMEOUT_S} s: {self._log.read_text()[-2000:]}")
            time.sleep(POLL_S)
        return True

    def images_lost_with_actors(self) -> int:
        """Images that were under way in workers whose end the drivers have told of."""
        return sum(int(count) for count in re.findall(r"a worker died with (\d+) images", self._log.read_text()))


@dataclass
class Kill:
    """One disturbance.

    Attributes:
        at: On the monotonic clock.
        done: Images that had their rows then.
        recovery_s: Until the next chunk was committed; None if the next kill came first, or nothing was left to do.
    """

    victim: str
    at: float
    done: int
    recovery_s: float | None = None


@dataclass
class Disturbed:
    """What became of the jobs of one target.

    Attributes:
        ended: Jobs that were brought to their end.
        starts: How often the command was typed for them.
        repeated: Images that were under way when a process was killed: so many at most were inferred more than once.
    """

    kills: list[Kill] = field(default_factory=list)
    ended: int = 0
    starts: int = 0
    seconds: float = 0.0
    repeated: int = 0


def victims_of(kills: int, dice: random.Random) -> list[str]:
    """Who is killed, in a random order: one node, and of the rest four in nine are drivers."""
    drivers = round((kills - 1) * 4 / 9)
    victims = ["node"] + ["driver"] * drivers + ["actor"] * (kills - 1 - drivers)
    dice.shuffle(victims)
    return victims


def disturb(run: Run, cluster: Cluster, victim: str, dice: random.Random) -> tuple[Kill, list[str]]:
    """Kill somebody; a driver's command is typed again. Also gives the chunks that a dead driver had leased.

    Raises:
        IndexError: There is no actor any more.
        ProcessLookupError: The one that was chosen has ended meanwhile.
    """
    if victim == "driver":
        run.kill()
        kill, left = Kill(victim, time.monotonic(), run.done()), run.place.leased()
        run.start()
        return kill, left
    kill = Kill(victim, time.monotonic(), run.done())
    if victim == "node":
        cluster.kill_node(dice)
    else:
        os.kill(dice.choice(cluster.actors()), signal.SIGKILL)
    return kill, []


def wait_for(victim: str, run: Run, cluster: Cluster) -> bool:
    """Wait until there is somebody to kill: a driver that has just started has no actors. False if the job is done."""
    deadline = time.monotonic() + TIMEOUT_S
    while victim == "actor" and not cluster.actors():
        if run.has_ended():
            return False
        if time.monotonic() > deadline:
            raise Loss(f"no actor was there in {TIMEOUT_S} s")
        time.sleep(POLL_S)
    return not run.has_ended()


def recover(run: Run, kills: list[Kill]) -> bool:
    """Wait until more is committed than at the last kill; false if the command ended first."""
    if not kills:
        return True
    going = run.reaches(kills[-1].done + 1)
    if going:
        kills[-1].recovery_s = time.monotonic() - kills[-1].at
    return going


def bring_to_end(run: Run, cluster: Cluster, victims: list[str], images: int, dice: random.Random) -> Disturbed:
    """One job to its end, with as many kills as it lasts for."""
    began, kills, left = time.monotonic(), list[Kill](), list[str]()
    run.start()
    for moment in sorted(dice.uniform(0, LATEST_SHARE) * images for _ in victims):
        if kills and victims[-1] == "driver" and dice.random() < HASTY_SHARE:
            time.sleep(dice.uniform(0, LATEST_HASTY_S))
        elif not (recover(run, kills) and run.reaches(round(moment))):
            break
        time.sleep(dice.uniform(0, 0.3))
        if not wait_for(victims[-1], run, cluster) or run.done() >= images:
            break  # What is left of the kills is for the next job.
        try:
            kill, leased = disturb(run, cluster, victims[-1], dice)
        except (IndexError, ProcessLookupError):
            continue
        kills.append(kill)
        left += leased
        print(f"  killed: {kill.victim} at {kill.done} of {images} images", flush=True)
        if kill.done >= images:
            break  # Just too late to disturb anything: it does not count.
        victims.pop()
    recover(run, kills)
    run.finish()
    sizes = Counter(dict(run.place.ask("select chunk, count(*) from images group by chunk")))
    repeated = run.images_lost_with_actors() + sum(sizes[chunk] for chunk in left)
    return Disturbed(kills, 1, run.starts, time.monotonic() - began, repeated)


def check_nothing_left(run: Run) -> float:
    """The same command once more does nothing; how long that took."""
    began = time.monotonic()
    run.start()
    run.finish()
    did = run.said()["run"]
    if did["images"] or did["chunks"]:
        raise Loss(f"a run over finished work did {did}")
    return time.monotonic() - began


@dataclass(frozen=True)
class Bench:
    """What all targets share: images, a model, a cluster."""

    workspace: Path
    model: str
    files: list[Path]
    cluster: Cluster
    server: str | None

    def run(self, target: str, name: str) -> Run:
        """A job into a new target."""
        return Run(self.workspace, self.model, self._place(target, name), self.cluster, log=f"{target}-{name}.log")

    def _place(self, target: str, name: str) -> Place:
        match target:
            case "parquet":
                return ParquetPlace(self.workspace / name)
            case "duckdb":
                return DuckDBPlace(self.workspace / f"{name}.duckdb")
            case _:
                assert self.server is not None
                return PostgresPlace(self.server, name)


def chaos(target: str, bench: Bench, kills: int, seed: int) -> str:
    """All kills on one kind of target; a part of the page."""
    dice, total = random.Random(f"{target} {seed}"), Disturbed()
    print(f"{target}: undisturbed", flush=True)
    calm = bench.run(target, "undisturbed")
    began = time.monotonic()
    calm.start()
    calm.finish()
    calm_s, wanted = time.monotonic() - began, read(calm.place, bench.files)
    check_images(wanted, len(bench.files))
    victims, again_s = victims_of(kills, dice), 0.0
    while victims:
        run = bench.run(target, f"disturbed_{total.ended}")
        one = bring_to_end(run, bench.cluster, victims, len(bench.files), dice)
        compare(wanted, read(run.place, bench.files))
        again_s = check_nothing_left(run)
        compare(wanted, read(run.place, bench.files))
        total = Disturbed(
            total.kills + one.kills,
            total.ended + 1,
            total.starts + one.starts,
            total.seconds + one.seconds,
            total.repeated + one.repeated,
        )
    print(f"{target}: nothing was lost, in {total.seconds:.0f} s ({calm_s:.0f} s undisturbed)", flush=True)
    return part(target, wanted, total, calm_s, again_s)


def check_images(found: Found, images: int) -> None:
    """Raise unless the undisturbed run is worth comparing with: the unreadable rejected, and boxes found."""
    rejected = sum(status == "rejected" for status, _ in found.images.values())
    unreadable = len(range(0, images, UNREADABLE_EVERY))
    if rejected != unreadable:
        raise Loss(f"{rejected} images were rejected, and {unreadable} are unreadable")
    if not images / 4 < len(found.boxes) < images * 0.9:
        raise Loss(f"only {len(found.boxes)} of {images} images have boxes: the model has not learnt what it should")


def part(target: str, wanted: Found, total: Disturbed, calm_s: float, again_s: float) -> str:
    """The results of a target as Markdown."""
    by_victim = Counter(kill.victim for kill in total.kills)
    reasons = Counter(reason for status, reason in wanted.images.values() if status == "rejected")
    killed = ", ".join(f"{count} x {victim}" for victim, count in sorted(by_victim.items()))
    rows = [
        [str(n + 1), kill.victim, str(kill.done), "-" if kill.recovery_s is None else f"{kill.recovery_s:.1f}"]
        for n, kill in enumerate(total.kills)
    ]
    rejected = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items(), key=str))
    return (
        f"## {target}\n\n{len(total.kills)} kills ({killed}) in {total.ended} "
        f"job{'s' if total.ended > 1 else ''} that went on to the end; the command was typed {total.starts} times. "
        f"{total.seconds:.0f} s with kills, {calm_s:.0f} s without; the same command over finished work: "
        f"0 images, {again_s:.1f} s.\n\n"
        f"**Nothing was lost or doubled**: {len(wanted.images)} images, of which {len(wanted.boxes)} with boxes and "
        f"{sum(reasons.values())} rejected ({rejected}), and {wanted.num_boxes} rows of `detections`, equal to the "
        f"undisturbed run. At most {total.repeated} images were inferred more than once: those that a process "
        "was working on when it was killed (and the four with which every actor measures its memory at its start).\n\n"
        + markdown_table(["kill", "victim", "images with rows then", "seconds to the next commit"], rows)
    )


def write_images(folder: Path, count: int) -> list[Path]:
    """Shapes as JPEG files; some cannot be read, some show nothing."""
    folder.mkdir()
    files = [folder / f"{index % 10}" / f"{index:05d}.jpg" for index in range(count)]
    for index, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        if index % BLANK_EVERY == 1:
            Image.new("RGB", (SIZE, SIZE), (128, 128, 128)).save(file)
        else:
            Image.fromarray(render_shapes(seed=2, index=index, size=SIZE).image).save(file, quality=92)
        if index % UNREADABLE_EVERY == 0:
            _spoil(file, index // UNREADABLE_EVERY)
    return files


def _spoil(file: Path, number: int) -> None:
    whole = file.read_bytes()
    file.write_bytes([whole[: len(whole) // 2], b"", b"This is not a photo.\n"][number % 3])


def teach(workspace: Path) -> str:
    """A model that finds most shapes, in half a minute."""
    sightline.synth("shapes", "shapes", images=TRAIN_IMAGES, seed=1, size=SIZE, workspace=workspace, config=config())
    run = sightline.train(
        "shapes",
        workspace=workspace,
        config=config(),
        model="nano",
        weights="none",
        size=64,
        epochs=EPOCHS,
        hold_back=0.0,
        evaluate_every=EPOCHS,
    )
    return str(Path(run.directory) / "model")


def page(parts: list[str], options: argparse.Namespace, busy: str) -> str:
    """The results as Markdown."""
    introduction = (__doc__ or "").partition("\n\n")[2].strip()
    head = f"{command('chaos')}, seed {options.seed}, {datetime.now(UTC):%Y-%m-%d}, {machine()}; {busy} before."
    words = (
        f"{options.images} images in chunks of {CHUNK}. Boxes are the same if label and number are, scores differ by "
        f"no more than {SCORE_TOLERANCE} and sides by no more than {PIXEL_TOLERANCE:g} pixel. Seconds to the next "
        'commit hold all of the start where a driver was killed; "-" is a kill that another one followed before '
        "anything was committed, or after which nothing was left to do."
    )
    body = "\n\n".join(parts)
    return f"# Kills of drivers, actors and nodes while detecting\n\n{head}\n\n{introduction}\n\n{words}\n\n{body}"


def main() -> None:
    """Disturb every target and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--model", help="a bundle, or the directory of a run; default: one is trained")
    parser.add_argument("--dry", action="store_true", help="write no page")
    options = parser.parse_args()
    before, parts = load_text(), list[str]()
    targets = options.target or TARGETS
    with ExitStack() as stack:
        workspace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sightline-chaos-")))
        files = write_images(workspace / "photos", options.images)
        model = options.model or teach(workspace)
        server = stack.enter_context(postgres()) if "postgresql" in targets else None
        bench = Bench(workspace, model, files, stack.enter_context(Cluster()), server)
        for target in targets:
            parts.append(chaos(target, bench, options.kills, options.seed))
            if not options.dry:
                write_page("chaos-detect.md", page(parts, options, before))  # What is done is kept.
    if options.dry:
        print(page(parts, options, before))


if __name__ == "__main__":
    main()
