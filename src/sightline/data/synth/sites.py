"""Where on a board a defect could go: runs of copper and of ground along sampled rows and columns.

A run of copper is a trace to cut (open), its ends are edges to bite (mousebite), its middle is copper to pierce
(pin-hole); a run of ground is a gap to bridge (short), its ends are edges to grow from (spur), its middle is ground
for an island (copper). So one pass over a few lines serves all six classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sightline.data.synth.dice import Dice
from sightline.data.synth.scan import Mask

Numbers = npt.NDArray[np.intp]

_EVERY = 9
_BORDER = 4


@dataclass(frozen=True)
class Run:
    """A maximal stretch ``[start, end)`` of one colour on a row (``lies``) or column number ``line``."""

    lies: bool
    line: int
    start: int
    end: int


class Runs:
    """All runs of one colour on the sampled lines that do not touch the board's border, as columns."""

    def __init__(self, board: Mask, *, dice: Dice) -> None:
        first = dice.whole(0, _EVERY - 1) + _BORDER
        rows = _find_runs(board[first:-_BORDER:_EVERY])
        columns = _find_runs(board[:, first:-_BORDER:_EVERY].T)
        self.line = np.concatenate((rows[0], columns[0])) * _EVERY + first
        self.start = np.concatenate((rows[1], columns[1]))
        self.end = np.concatenate((rows[2], columns[2]))
        self.copper = np.concatenate((rows[3], columns[3]))
        self.lies = np.arange(len(self.line)) < len(rows[0])
        self.length = self.end - self.start

    def near(self, *, copper: bool, w: int, h: int) -> Numbers:
        """Runs of a colour whose length is the closest to the wanted width (rows) or height (columns)."""
        some = np.flatnonzero((self.copper == copper) & (self.length >= 4) & (self.length < 120))
        lies = self.lies[some]
        wanted = np.where(lies, w, h)
        # Strokes cross a run at full length, so the longer side is better looked for along it.
        error = np.abs(self.length[some] - wanted) / (wanted + 6.0) + 0.3 * (lies != (w >= h))
        return some[np.argsort(error, kind="stable")[: max(8, len(some) // 25)]]

    def longer(self, *, copper: bool, w: int, h: int) -> Numbers:
        """Runs of a colour longer than the wanted width (rows) or height (columns)."""
        wanted = np.where(self.lies, w, h)
        return np.flatnonzero((self.copper == copper) & (self.length > wanted))

    def __getitem__(self, i: int) -> Run:
        """One run."""
        return Run(bool(self.lies[i]), int(self.line[i]), int(self.start[i]), int(self.end[i]))


def _find_runs(lines: Mask) -> tuple[Numbers, Numbers, Numbers, Mask]:
    """Line number, start, end and colour of every run but the first and last of a line."""
    line, at = np.nonzero(lines[:, 1:] != lines[:, :-1])
    at = at + 1
    inner = np.flatnonzero(line[1:] == line[:-1])
    line, start, end = line[inner], at[inner], at[inner + 1]
    return line, start, end, lines[line, start]
