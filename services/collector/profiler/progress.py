"""Progress of a training command by its output: ``epoch 3/50``, ``step 1200``, tqdm's bars, a trainer's logs.

If a line has an epoch and a step of a total, the position is in fractional epochs; if steps restart without a word of
epochs, each restart is an epoch. Decreasing counts are no progress.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from services.collector.profiler.series import Series
from services.collector.profiler.steady import warm_up

_COUNT: Final = r"['\"]?\s*[:=#\[(]*\s*(\d+(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d+))?"
_EPOCH: Final = re.compile(r"(?<![a-z_])epoch" + _COUNT, re.IGNORECASE)
_STEP: Final = re.compile(r"(?<![a-z_])(?:global[_ ]?step|step|iteration|iter|batch)" + _COUNT, re.IGNORECASE)
_BAR: Final = re.compile(r"(?<![\d/])(\d+)/(\d+)\s*(?:\[|━)")
_EPOCH_BAR: Final = re.compile(r"\s*epochs?\b[^\d]*(?:\d+%)?\D*", re.IGNORECASE)
_LEAST_MARKS: Final = 3
_BLOCKS: Final = 8
_MAX_LINE_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Pace:
    """A rate of progress."""

    per_s: float
    """Epochs, or steps, per second."""
    relative_error: float
    """Standard error over the rate."""
    epochs: bool
    """Whether epochs are counted; else steps."""
    first_s: float
    """When the first mark was seen, from the start of the workers."""
    last_s: float
    seen: float
    """Units from the training's beginning to the last mark's end: of a finished run, all."""
    total: float = 0.0
    """Units of the whole training as the lines tell them; 0: they do not."""


@dataclass(slots=True)
class ProgressReader:
    """Takes lines as they come."""

    resolution_s: float
    """How exactly the time of a line is known."""
    _marks: list[tuple[float, float]] = field(default_factory=list)
    """Seconds from the start, and position."""
    _epoch: float | None = None
    _first_epoch: float = 0.0
    _epoch_total: float = 0.0
    _step: float = -1.0
    _step_total: float = 0.0
    _resets: int = 0
    _went_back: bool = False
    _part_of_epoch: bool = False
    """Positions are in epochs."""

    def take(self, line: str, elapsed_s: float) -> None:
        """Read a line that was written until `elapsed_s`, counted from the start of the workers."""
        text = line[:_MAX_LINE_CHARACTERS]
        bar = _BAR.search(text)
        epoch, step = _EPOCH.search(text), _STEP.search(text)
        if bar is not None and _EPOCH_BAR.fullmatch(text[: bar.start()]):
            epoch, bar = bar, None
        moved = self._at_epoch(epoch) if epoch is not None else False
        moved = self._at_step(step if step is not None and step[2] else bar or step) or moved
        if moved:
            self._mark(elapsed_s)

    def _at_epoch(self, found: re.Match[str]) -> bool:
        value, before = float(found[1]), self._epoch
        self._epoch_total = float(found[2] or self._epoch_total)
        if before is None:
            self._first_epoch = value if value == int(value) else 0.0
            if self._marks:  # steps were counted until now, and this is the first word of epochs
                self._marks.clear()
        elif value < before:
            self._went_back = True
        self._epoch, self._part_of_epoch = value, True
        if before != value:
            self._step = -1.0
        return before != value

    def _at_step(self, found: re.Match[str] | None) -> bool:
        if found is None:
            return False
        value, before = float(found[1]), self._step
        self._step, self._step_total = value, float(found[2] or 0.0)
        if value < before and self._epoch is None:
            self._resets += 1
            if not self._part_of_epoch:
                self._part_of_epoch = True
                self._marks = [(at_s, min(at / max(before, 1.0), 1.0)) for at_s, at in self._marks]
        return value != before and (self._epoch is None or self._step_total > 0)

    def _mark(self, elapsed_s: float) -> None:
        part = self._step / self._step_total if self._step_total > 0 and self._step >= 0 else 0.0
        if self._epoch is not None:
            whole = self._epoch == int(self._epoch)
            position = self._epoch - self._first_epoch + (min(part, 1.0) if whole else 0.0)
        elif self._part_of_epoch:
            position = self._resets + min(part, 1.0)
        else:
            position = self._step
        if self._marks and position < self._marks[-1][1] - 1e-9:
            return
        if self._marks and elapsed_s <= self._marks[-1][0]:
            self._marks.pop()
        self._marks.append((elapsed_s, position))

    def pace(self) -> Pace | None:
        """Return the rate after the warm-up; None of fewer than three marks, or where the count went backwards."""
        moved = [mark for at, mark in enumerate(self._marks) if at == 0 or mark[1] > self._marks[at - 1][1]]
        if len(moved) < _LEAST_MARKS or self._went_back:
            return None
        times, positions = np.array(moved).T
        first = warm_up(np.diff(times) / np.diff(positions))
        span_s, span = float(times[-1] - times[first]), float(positions[-1] - positions[first])
        error = _relative_error(times[first:], positions[first:])
        error = math.hypot(error, self.resolution_s / span_s / math.sqrt(6.0))
        total = self._epoch_total if self._part_of_epoch else self._step_total
        # A mark without a part of its epoch stands for the whole epoch.
        seen = float(positions[-1]) + (1.0 if self._step_total <= 0 and positions[-1] == int(positions[-1]) else 0.0)
        return Pace(span / span_s, error, self._part_of_epoch, float(times[0]), float(times[-1]), seen, total)


def _relative_error(times: Series, positions: Series) -> float:
    """Of the slope: by the slopes of consecutive blocks; of few marks, by a count's being known to within one half."""
    blocks = min(_BLOCKS, (len(times) - 1) // 2)
    if blocks < 2:
        return float(0.5 / (positions[-1] - positions[0])) if positions[-1] - positions[0] >= 1 else 0.25
    ends = np.linspace(0, len(times) - 1, blocks + 1).astype(int)
    slopes = np.diff(positions[ends]) / np.diff(times[ends])
    return float(slopes.std(ddof=1) / np.sqrt(blocks) / slopes.mean()) if slopes.mean() > 0 else 1.0


def lines_of(unread: bytes) -> tuple[Sequence[str], bytes]:
    """Return the whole lines of what was read, and the rest; a bar's carriage returns end lines, too."""
    *whole, rest = re.split(rb"[\r\n]+", unread)
    return [one.decode("utf-8", "replace") for one in whole], rest[-_MAX_LINE_CHARACTERS:]
