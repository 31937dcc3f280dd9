"""Side-by-side measuring: contenders take turns in one run, and ratios of medians are what counts."""

import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs" / "benchmarks"


@dataclass(frozen=True)
class Measured:
    """Images per second of one contender over the repeats."""

    name: str
    rates: list[float]

    @property
    def median(self) -> float:
        """The middle rate."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> str:
        """Lowest and highest rate."""
        return f"{rate_text(min(self.rates))} to {rate_text(max(self.rates))}"


def take_turns(contenders: Mapping[str, Callable[[], int]], *, repeats: int) -> dict[str, Measured]:
    """Run each contender in turn, `repeats` times; each returns how many images it did."""
    return collect_turns({name: partial(_rate_of, run) for name, run in contenders.items()}, repeats=repeats)


def collect_turns(contenders: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, Measured]:
    """The same for contenders that measure themselves, without their start-up; each returns its images per second."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, run in contenders.items():
            rates[name].append(run())
            print(f"  turn {turn + 1}/{repeats}  {name:<40} {rate_text(rates[name][-1]):>9} images/s", flush=True)
    return {name: Measured(name, found) for name, found in rates.items()}


def _rate_of(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    images = run()
    return images / (time.perf_counter() - start)


def rate_text(rate: float) -> str:
    """A rate with the digits that matter."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"


def paired_ratio(ours: Measured, theirs: Measured) -> float:
    """The median over turns of our rate by theirs in the same turn, which cancels slow drifts of the machine."""
    return statistics.median(a / b for a, b in zip(ours.rates, theirs.rates, strict=True))


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def command(goal: str) -> str:
    """The command that is running, for its page.

    Args:
        goal: What make calls it as a part of.
    """
    program, *options = sys.argv
    return f"`{shlex.join(['python', f'bench/{Path(program).name}', *options])}`, a part of `make {goal}`"


def machine() -> str:
    """One line on where this ran."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def load_text() -> str:
    """How busy the machine is: on a quiet one this is about what the benchmark itself needs."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.1f} over a minute, {five:.1f} over five"


def write_page(name: str, text: str) -> None:
    """Write a page of results."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / name).write_text(text.rstrip() + "\n", "utf-8")
    print(f"written to {DOCS / name}")
