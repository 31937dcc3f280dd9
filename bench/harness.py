"""Side-by-side measuring: contenders take turns in one run, and ratios of medians are what counts."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        return f"{min(self.rates):,.0f} to {max(self.rates):,.0f}"


def take_turns(contenders: Mapping[str, Callable[[], int]], *, repeats: int) -> dict[str, Measured]:
    """Run each contender in turn, `repeats` times; each returns how many images it did."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name, run in contenders.items():
            start = time.perf_counter()
            images = run()
            rates[name].append(images / (time.perf_counter() - start))
            print(f"  turn {turn + 1}/{repeats}  {name:<40} {rates[name][-1]:>9,.0f} images/s", flush=True)
    return {name: Measured(name, found) for name, found in rates.items()}


def paired_ratio(ours: Measured, theirs: Measured) -> float:
    """The median over turns of our rate by theirs in the same turn, which cancels slow drifts of the machine."""
    return statistics.median(a / b for a, b in zip(ours.rates, theirs.rates, strict=True))


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Rows as Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def machine() -> str:
    """One line on where this ran."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, Python {platform.python_version()}"


def write_page(name: str, text: str) -> None:
    """Write a page of results."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / name).write_text(text.rstrip() + "\n", "utf-8")
    print(f"written to {DOCS / name}")
