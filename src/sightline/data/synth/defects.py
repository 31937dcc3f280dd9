"""The six defects: where each may go, what is drawn there, and what the board must then look like.

A defect is proposed as a stencil at a site, drawn into the clean board, developed like everything else, and kept
only if the developed window shows what its class means; otherwise the window is put back and another is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sightline.data.synth import sizes, stencils
from sightline.data.synth.dice import Dice
from sightline.data.synth.regions import count_regions, grow
from sightline.data.synth.scan import Box, Mask, Scan
from sightline.data.synth.sites import Run, Runs
from sightline.data.synth.stencils import Stencil

# The classes that add copper; the others remove it.
ADDS_COPPER = frozenset({sizes.SHORT, sizes.SPUR, sizes.COPPER})

_TRIES = 36
_AROUND = 8
_APART = 6
_SPECK = 12


@dataclass(frozen=True)
class Proposal:
    """A stencil and the pixel of the board its upper left corner goes to."""

    stencil: Stencil
    x: int
    y: int


class Bench:
    """A board on which defects are made, one after another, apart from each other."""

    def __init__(self, scan: Scan, *, dice: Dice) -> None:
        self.scan = scan
        self.board = scan.develop()
        self._dice = dice
        self._runs = Runs(self.board, dice=dice)
        self._taken: list[Box] = []

    def add(self, defect: int) -> Box | None:
        """Make a defect of a class; return the extent of the changed pixels, or None when no place was found."""
        w, h = sizes.draw_extent(defect, dice=self._dice)
        for attempt in range(_TRIES):
            if attempt % 6 == 5:
                w, h = sizes.draw_extent(defect, dice=self._dice)
            proposal = self._propose(defect, w, h)
            extent = proposal and self._try(defect, proposal)
            if extent:
                self._taken.append(extent)
                return extent
        return None

    def _propose(self, defect: int, w: int, h: int) -> Proposal | None:
        copper = defect not in ADDS_COPPER
        if defect in (sizes.OPEN, sizes.SHORT):
            found = self._runs.near(copper=copper, w=w, h=h)
        else:
            found = self._runs.longer(copper=copper, w=w + 6, h=h + 6)
        if not len(found):
            return None
        run = self._runs[int(found[self._dice.whole(0, len(found) - 1)])]
        if defect in (sizes.OPEN, sizes.SHORT):
            return _across(run, w, h, ragged=0.3 if copper else 0.0, dice=self._dice)
        if defect in (sizes.MOUSEBITE, sizes.SPUR):
            return _at_edge(run, w, h, bite=copper, dice=self._dice)
        return _inside(run, w, h, hole=copper, dice=self._dice)

    def _try(self, defect: int, proposal: Proposal) -> Box | None:
        """Draw and develop a proposal; keep it if it is what its class means."""
        window = self._window(proposal)
        if window is None:
            return None
        x0, y0, x1, y1 = window
        before = self.board[y0:y1, x0:x1]
        clean = self.scan.window(window)
        kept = clean.copy()
        h, w = proposal.stencil.shape
        top, left = proposal.y - y0, proposal.x - x0
        clean[top : top + h, left : left + w][proposal.stencil] = defect in ADDS_COPPER
        after = self.scan.develop(window)
        changed = before != after
        if not _is_marked(defect, before, changed) or not self._is_cut_or_joined(defect, window, after, changed):
            clean[:] = kept
            return None
        self.board[y0:y1, x0:x1] = after
        ys, xs = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        return (x0 + int(xs[0]), y0 + int(ys[0]), x0 + int(xs[-1]) + 1, y0 + int(ys[-1]) + 1)

    def _is_cut_or_joined(self, defect: int, window: Box, after: Mask, changed: Mask) -> bool:
        """Whether an open parts what was one area and a short joins what were two; True for the other classes.

        Looked at in a wider window, lest the rim of a hole or the two ends of a pad pass for separate areas.
        """
        if defect not in (sizes.OPEN, sizes.SHORT):
            return True
        x0, y0, x1, y1 = window
        more = max(x1 - x0, y1 - y0) // 3
        left, top = max(0, x0 - more), max(0, y0 - more)
        wide_before = self.board[top : y1 + more, left : x1 + more]
        wide_after = wide_before.copy()
        wide_after[y0 - top : y1 - top, x0 - left : x1 - left] = after
        # What is cut off or joined must weigh about as much as the cut: the corner of a pad is no trace.
        least = max(_SPECK, int(np.count_nonzero(changed)) // 2)
        gained = count_regions(wide_after, min_area=least) - count_regions(wide_before, min_area=least)
        return gained > 0 if defect == sizes.OPEN else gained < 0

    def _window(self, proposal: Proposal) -> Box | None:
        """The part of the board that a proposal concerns; None if it is off the board or near another defect."""
        h, w = proposal.stencil.shape
        x0, y0 = proposal.x - _AROUND, proposal.y - _AROUND
        x1, y1 = proposal.x + w + _AROUND, proposal.y + h + _AROUND
        if x0 < 0 or y0 < 0 or x1 > self.scan.size or y1 > self.scan.size:
            return None
        for a0, b0, a1, b1 in self._taken:
            if x0 < a1 + _APART and a0 < x1 + _APART and y0 < b1 + _APART and b0 < y1 + _APART:
                return None
        return (x0, y0, x1, y1)


def _is_marked(defect: int, before: Mask, changed: Mask) -> bool:
    """Whether enough changed, and touches as many edges as the class asks for.

    What counts is the change's own kind: ground for a hole, copper for a blob. Islands touch none, bites and spurs
    one stretch and nothing beyond, cuts and bridges at least one on either side.
    """
    if np.count_nonzero(changed) < _SPECK:
        return False
    own = before if defect in ADDS_COPPER else ~before
    close = grow(changed)
    touched = count_regions(grow(close) & own)
    if defect in (sizes.OPEN, sizes.SHORT):
        return touched >= 2
    if defect in (sizes.MOUSEBITE, sizes.SPUR):
        # A bite that leaves a thread of copper along the edge would be a pin-hole.
        return touched == 1 and bool((close & own).any())
    return touched == 0


def _across(run: Run, w: int, h: int, *, ragged: float, dice: Dice) -> Proposal:
    """A stroke from one end of a run to the other and a little beyond."""
    beyond, length = 3, run.end - run.start
    wide = min(h if run.lies else w, max(18, length))
    # Drawn lying: the stroke goes from the left edge to the right one whatever its tilt.
    thick = min(wide, dice.between(4, 10))
    stencil = stencils.draw_stroke(length + 2 * beyond, wide, width=thick, dice=dice)
    if dice.chance(ragged):
        stencil = stencil | stencils.draw_streaks(length + 2 * beyond, wide, dice=dice)
    if run.lies:
        return Proposal(stencil, run.start - beyond, run.line - wide // 2)
    return Proposal(stencil.T, run.line - wide // 2, run.start - beyond)


def _at_edge(run: Run, w: int, h: int, *, bite: bool, dice: Dice) -> Proposal:
    """A shape that reaches from one end of a run into it."""
    beyond = 3
    weights = (0.35, 0.2, 0.2, 0.25) if bite else (0.4, 0.3, 0.3, 0.0)
    grown_w, grown_h = (w + beyond, h) if run.lies else (w, h + beyond)
    stencil = stencils.draw_any(grown_w, grown_h, weights=weights, dice=dice)
    depth = grown_w if run.lies else grown_h
    along = run.start - beyond if dice.chance(0.5) else run.end + beyond - depth
    if run.lies:
        return Proposal(stencil, along, run.line - h // 2)
    return Proposal(stencil, run.line - w // 2, along)


def _inside(run: Run, w: int, h: int, *, hole: bool, dice: Dice) -> Proposal:
    """A shape somewhere along a run, clear of both its ends."""
    stencil = stencils.draw_any(w, h, weights=(0.65, 0.12, 0.13, 0.1) if hole else (0.7, 0.12, 0.18, 0.0), dice=dice)
    along = dice.whole(run.start + 3, run.end - 3 - (w if run.lies else h))
    if run.lies:
        return Proposal(stencil, along, run.line - h // 2)
    return Proposal(stencil, run.line - w // 2, along)
