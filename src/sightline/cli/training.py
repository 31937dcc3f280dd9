"""What people see while a model trains: one live line, and a table that grows by a row an evaluation."""

import time
from typing import TYPE_CHECKING

from sightline.cli.session import Session

if TYPE_CHECKING:
    from sightline.training.messages import RunProgress

_SCORES = {"map": "mAP", "map50": "mAP50", "f1": "F1", "accuracy": "accuracy"}
"""What is shown of an evaluation; mAP at an overlap of the user's choice has a name of its own."""
_WIDTH = 9


class TrainingView:
    """Told of every step and every evaluation."""

    def __init__(self, session: Session, epochs: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._session, self._epochs = session, epochs
        console = session.console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("training", total=None, note="")
        self._clock, self._table = _Clock(), _Table(epochs)
        self._workers = ""

    def __enter__(self) -> "TrainingView":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_step(self, progress: "RunProgress", num_steps: int, losses: dict[str, float], images: int) -> None:
        """Move the line."""
        rate = self._clock.on_step(images, losses["loss"])
        left = (num_steps - progress.step) * images / rate if rate else 0.0
        note = f"loss {losses['loss']:.3f}  {rate:.1f} images/s  {left / 60:.1f} min left{self._workers}"
        description = f"epoch {min(progress.epoch + 1, self._epochs)}/{self._epochs}"
        self._bar.update(self._task, completed=progress.step, total=num_steps, note=note, description=description)

    def on_workers(self, alive: int, wanted: int) -> None:
        """Show how many workers there are, unless there is only one."""
        self._workers = f"  {alive}/{wanted} workers" if wanted > 1 else ""

    def on_scores(self, epoch: int, scores: dict[str, float]) -> None:
        """Add a row to the table."""
        for line in self._table.rows(epoch, scores, self._clock):
            self._session.say(line)
        self._clock.on_scores()


class _Clock:
    """Time, images and losses since the last evaluation, whose own time does not count."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()
        self._since = 0.0
        self._images, self._losses = 0, [0.0, 0.0]

    def on_step(self, images: int, loss: float) -> float:
        """Images a second, so far."""
        self._last = time.monotonic()
        if self._since:
            self._images += images
        else:
            self._since = self._last  # Of the very first step only the end is seen.
        self._losses = [self._losses[0] + loss, self._losses[1] + 1]
        return self.images_per_s

    def on_scores(self) -> None:
        """Begin anew."""
        self._images, self._losses, self._since = 0, [0.0, 0.0], time.monotonic()

    @property
    def images_per_s(self) -> float:
        return self._images / max(self._last - self._since, 1e-9) if self._images else 0.0

    @property
    def loss(self) -> float:
        """The mean over the steps since the last evaluation."""
        return self._losses[0] / self._losses[1] if self._losses[1] else float("nan")

    @property
    def elapsed(self) -> str:
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _Table:
    """Aligned rows under a header that is said once."""

    def __init__(self, epochs: int) -> None:
        self._epochs, self._headed, self._best = epochs, False, -1.0

    def rows(self, epoch: int, scores: dict[str, float], clock: _Clock) -> list[str]:
        """The row of an evaluation, below the header if it is the first; a star marks the best so far."""
        shown = [name for name in scores if name in _SCORES or name.startswith("map")]
        cells = [
            f"{epoch}/{self._epochs}",
            f"{clock.loss:.4f}",
            *(f"{scores[name]:.4f}" for name in shown),
            f"{clock.images_per_s:.1f}",
            clock.elapsed,
        ]
        header = [
            "epoch",
            "loss",
            *(_SCORES.get(name, name.replace("map", "mAP")) for name in shown),
            "images/s",
            "elapsed",
        ]
        better, self._best = scores["score"] > self._best, max(scores["score"], self._best)
        lines = [_line(cells) + (" *" if better else "")]
        if not self._headed:
            lines.insert(0, _line(header))
        self._headed = True
        return lines


def _line(cells: list[str]) -> str:
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)
