"""Kills a training run again and again, and shows that nothing that was saved is lost. Run by `make chaos`.

The real command trains `nano` with augmentation and a moving average. It is killed with SIGKILL at random moments, then
in the seconds after a save returned; then its files are torn. After every kill the newest save that had returned (the
witness wrote it down, see `bench/witness.py`) must still be there and verify, and the next start must go on from there
or later. Whenever the run reaches its end, its weights must be those of a run that was never disturbed, bit for bit.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness import command, machine, markdown_table, write_page
from witnessed_run import (
    Event,
    Loss,
    Run,
    Weights,
    check_end,
    check_saved,
    newest_saved,
    prepare,
    resumed_at,
    step_of,
    what_it_did,
)

from sightline.training.checkpoint import load_checkpoint

RANDOM_KILLS, KILLS_AFTER_SAVE, TORN_STARTS = 20, 10, 3
LATEST_RANDOM_S, LATEST_AFTER_SAVE_S = 4.0, 3.0
OFFSETS_EACH = 12


@dataclass
class Kill:
    """What one kill hit, and what came of it."""

    series: str
    delay_s: float
    step: int
    doing: str
    saved: int
    resumed: int | None = None

    def row(self, number: int) -> list[str]:
        """For the table."""
        resumed = "-" if self.resumed is None else str(self.resumed)
        return [str(number), self.series, f"{self.delay_s:.3f}", str(self.step), self.doing, str(self.saved), resumed]


@dataclass
class Chaos:
    """The whole trial.

    Attributes:
        run: Who is killed.
        undisturbed: The weights it must end with.
        dice: Of the moments.
    """

    run: Run
    undisturbed: Weights
    dice: random.Random
    kills: list[Kill] = field(default_factory=list)

    def kill_at_random(self, *, count: int, latest_s: float) -> None:
        """Kill at any moment after the loop was entered."""
        for _ in range(count):
            self._kill("at random", self.dice.uniform(0, latest_s), lambda events: resumed_at(events) is not None)

    def kill_after_save(self, delays_s: Sequence[float]) -> None:
        """Kill so many seconds after the first save of a process has returned."""
        for delay in delays_s:
            self._kill("after a save", delay, lambda events: newest_saved(events) is not None)

    def _kill(self, series: str, delay_s: float, moment: Callable[[list[Event]], bool]) -> None:
        while not self._try_to_kill(series, delay_s, moment):
            check_end(self.run, self.undisturbed)
            self.run.begin_anew()

    def _try_to_kill(self, series: str, delay_s: float, moment: Callable[[list[Event]], bool]) -> bool:
        self._start()
        if not self.run.wait_for(moment):
            self.run.finish()
            return False
        time.sleep(delay_s)
        if not self.run.kill():
            return False
        events = self.run.events()
        step = max((int(detail) for event, detail in events if event == "step"), default=resumed_at(events) or 0)
        kill = Kill(series, delay_s, step, what_it_did(events), check_saved(self.run))
        self.kills.append(kill)
        print(" | ".join(kill.row(len(self.kills))), flush=True)
        return True

    def _start(self) -> None:
        """Start, and see that it goes on from the newest save that had returned before, or from a later one."""
        before = self.run.events(all_lives=True)
        self.run.start()
        if self.run.wait_for(lambda events: resumed_at(events) is not None):
            resumed = resumed_at(self.run.events())
        else:  # It was killed between its last save and its end, and no step was left to train.
            self.run.finish()
            check_end(self.run, self.undisturbed)
            resumed = check_saved(self.run)
        if resumed is None or resumed < step_of(newest_saved(before)):
            raise Loss(f"{newest_saved(before)} was saved, but the run went on from step {resumed}")
        if self.kills and before:
            self.kills[-1].resumed = resumed

    def tear_files(self, *, offsets: int) -> int:
        """Truncate the newest checkpoint's files at many offsets: the one before must be found. Returns how many."""
        newest, before = self._two_newest()
        expected, tears = load_checkpoint(before).progress, 0
        for file in sorted(newest.iterdir()):
            whole = file.read_bytes()
            for offset in {0, 1, len(whole) - 1, *(self.dice.randrange(len(whole)) for _ in range(offsets))}:
                file.write_bytes(whole[:offset])
                found = self.run.checkpoints.load_latest()
                if found is None or found.progress != expected:
                    raise Loss(f"{file.name} cut at byte {offset}: the checkpoint before it was not found")
                tears += 1
            file.write_bytes(whole)
        return tears

    def start_on_torn_files(self, *, count: int) -> list[list[str]]:
        """Tear the newest checkpoint, or both, and start the command: it goes on from the one before, or anew."""
        rows = []
        for number in range(count):
            places = self._two_newest()
            torn = places if number == count - 1 else places[:1]
            files = [self._tear(place) for place in torn]
            expected = step_of(places[1].name) if len(torn) == 1 else 0
            self.run.start()
            self.run.wait_for(lambda events: newest_saved(events) is not None)
            ended = not self.run.kill()
            resumed = resumed_at(self.run.events())
            if resumed != expected:
                raise Loss(f"with {files} torn the run went on from step {resumed} instead of {expected}")
            rows.append([", ".join(files), str(expected), str(resumed)])
            print(" | ".join(rows[-1]), flush=True)
            if (saved := self._saved_last()) is None or self.run.checkpoints.load_latest() is None:
                raise Loss(f"after torn files, {saved} was saved and cannot be loaded")
            if ended:
                check_end(self.run, self.undisturbed)
                self.run.begin_anew()
        return rows

    def _two_newest(self) -> list[Path]:
        """The two newest checkpoints; a run that has just begun is given the time to save them."""
        while len(found := sorted(self.run.checkpoints.path.glob("step-*"), reverse=True)) < 2:
            self.kill_after_save([0.0])
        return found[:2]

    def _saved_last(self) -> str | None:
        """What the last process saved is the newest there is, whatever was torn before."""
        saved = newest_saved(self.run.events())
        found = self.run.checkpoints.load_latest()
        if saved is None or found is None or found.progress["step"] < step_of(saved):
            raise Loss(f"{saved} was saved after torn files, and is gone")
        return saved

    def _tear(self, place: Path) -> str:
        file = self.dice.choice(sorted(place.iterdir()))
        offset = self.dice.randrange(file.stat().st_size)
        os.truncate(file, offset)
        return f"{place.name}/{file.name} at byte {offset:,}"

    def finish(self) -> None:
        """Train to the end, undisturbed from now on, and compare."""
        self.run.start()
        self.run.finish()
        check_end(self.run, self.undisturbed)


def delays_after_save(dice: random.Random, count: int) -> list[float]:
    """At once, then shortly after, then anywhere up to three seconds."""
    near = [0.0, 0.0, 0.001, 0.01, 0.05, 0.2]
    return (near + [dice.uniform(0.2, LATEST_AFTER_SAVE_S) for _ in range(count)])[:count]


def trial(directory: Path, *, seed: int, epochs: int) -> str:
    """The full trial; returns the page."""
    started = time.monotonic()
    run, undisturbed = prepare(directory, epochs=epochs)
    print(f"undisturbed: {len(undisturbed)} tensors", flush=True)
    chaos = Chaos(run, undisturbed, random.Random(seed))
    chaos.kill_at_random(count=RANDOM_KILLS, latest_s=LATEST_RANDOM_S)
    run.checkpoint_every_s = 1.0  # So that kills after a save seldom have a later one to fall back on.
    chaos.kill_after_save(delays_after_save(chaos.dice, KILLS_AFTER_SAVE))
    tears = chaos.tear_files(offsets=OFFSETS_EACH)
    torn = chaos.start_on_torn_files(count=TORN_STARTS)
    chaos.finish()
    print(f"nothing was lost in {len(chaos.kills)} kills and {tears} truncations")
    took = f"{time.monotonic() - started:.0f} s"
    head = f"{command('chaos')}, seed {seed}, {datetime.now(UTC):%Y-%m-%d}, {machine()}, {took}."
    return f"# Kills and torn files\n\n{head}\n\n{page(chaos, tears, torn)}".replace(str(directory), "…")


def page(chaos: Chaos, tears: int, torn: list[list[str]]) -> str:
    """What was done and what came of it, as Markdown."""
    introduction = (__doc__ or "").partition("\n\n")[2]
    header = ["kill", "when", "seconds", "at step", "while", "newest save returned", "went on from"]
    kills = markdown_table(header, [kill.row(number) for number, kill in enumerate(chaos.kills, 1)])
    counts = f"{len(chaos.kills)} kills, {tears} truncations and {len(torn)} starts on torn files"
    return (
        f"{introduction}\n"
        f"The command: `sightline {' '.join(chaos.run.command())}`\n\n"
        f"**Nothing was lost** in {counts}. The run reached its end {chaos.run.lives + 1} times, each time with all "
        f"{len(chaos.undisturbed)} tensors (weights, moving average, optimizer, best model) equal to those of the "
        f"undisturbed run.\n\n"
        f"Seconds are counted from the moment the loop was entered, or from the return of the first save. Steps after "
        f"the newest save are trained again, which is why a run may go on from before the step it was killed at.\n\n"
        f"{kills}\n\n## Starts on torn files\n\nThe last line tore every checkpoint there was: the run begins anew, "
        f"and what it saves then is kept.\n\n{markdown_table(['torn', 'expected step', 'went on from'], torn)}"
    )


def main() -> None:
    """Try everything and write the page; any loss ends it with a message and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    print(f"seed {options.seed}; kill | when | seconds | at step | while | newest save returned | went on from (later)")
    with tempfile.TemporaryDirectory(prefix="sightline-chaos-") as name:
        try:
            text = trial(Path(name), seed=options.seed, epochs=options.epochs)
        except Loss as loss:
            raise SystemExit(f"LOST: {loss}") from None
    write_page("chaos.md", text)


if __name__ == "__main__":
    main()
