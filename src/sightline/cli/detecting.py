"""What people see while a job runs: one live line."""

import time
from typing import TYPE_CHECKING

from sightline.cli.session import Session

if TYPE_CHECKING:
    from sightline.detection.runner import Progress

_WINDOW_S = 10.0


class DetectionView:
    """Told several times a second how far a job is."""

    def __init__(self, session: Session) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = session.console
        columns = (TextColumn("detecting"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("detecting", total=None, note="")
        self._seen: list[tuple[float, int]] = []

    def __enter__(self) -> "DetectionView":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_progress(self, progress: "Progress") -> None:
        """Move the line."""
        rate = self._rate(progress.new)
        total = f"{progress.total:,}" + ("" if progress.listed else "+")
        note = f"{progress.done:,}/{total}"
        if rate:
            note += f"  {rate:,.1f} images/s"
            left = (progress.total - progress.done) / rate
            note += f"  {left / 60:.1f} min left" if progress.listed else "  still listing"
        if progress.rejected:
            note += f"  {progress.rejected:,} rejected"
        if progress.workers_wanted > 1:
            note += f"  {progress.workers}/{progress.workers_wanted} workers"
        known = progress.total if progress.listed else None
        self._bar.update(self._task, completed=progress.done, total=known, note=note)

    def _rate(self, done: int) -> float:
        """Over the last seconds, so that the start does not count for ever."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_S:
            self._seen.pop(0)
        first, before = self._seen[0]
        return (done - before) / (now - first) if now > first else 0.0
