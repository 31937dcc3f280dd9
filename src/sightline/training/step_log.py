"""The loss of every step in a CSV file, so that a learning curve can be drawn of a run that took many processes."""

import csv
from pathlib import Path

FILE = "steps.csv"
_COLUMNS = ("step", "epoch", "loss", "lr", "images_per_s")


class StepLog:
    """Rows are kept in memory until `save`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._rows: list[tuple[float, ...]] = []

    def go_on_from(self, step: int) -> None:
        """Forget what a killed process did after its last checkpoint: those steps are taken again."""
        self._rows = [row for row in self._rows if row[0] <= step]
        kept = [row for row in self.read() if row[0] <= step] if self._file.is_file() else []
        partial = self._file.with_suffix(".tmp")
        with open(partial, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([_COLUMNS, *kept])
        partial.replace(self._file)

    def add(self, step: int, epoch: float, loss: float, lr: float, images_per_s: float) -> None:
        """Note a step."""
        self._rows.append((step, round(epoch, 4), loss, lr, round(images_per_s, 2)))

    def save(self) -> None:
        """Append what was noted to the file."""
        with open(self._file, "a", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(self._rows)
        self._rows.clear()

    def read(self) -> list[tuple[float, ...]]:
        """All rows of the file; one torn by a crash is left out."""
        with open(self._file, newline="", encoding="utf-8", errors="replace") as stream:
            rows = [_numbers(row) for row in csv.reader(stream)]
        return [row for row in rows if len(row) == len(_COLUMNS)]


def _numbers(row: list[str]) -> tuple[float, ...]:
    try:
        return tuple(map(float, row))
    except ValueError:
        return ()
