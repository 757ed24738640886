"""A rate of progress and its standard error, from when which part of the work was done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.collector.profiler.series import Series
from services.collector.profiler.steady import warm_up

UNSEEN: Final = 1.1
"""Where no whole epoch was seen, its validation was not seen either: an epoch is taken for so much longer."""
UNSEEN_ERROR: Final = 0.13
"""The standard error of that: validation, checkpoints and shuffling of 0 to 35 % of an epoch are within two of them."""
_LEAST_ERROR: Final = 0.01
_LEAST_MARKS: Final = 3
_LENGTH_ERROR: Final = 0.03
_BLOCKS: Final = 8
_ERROR_OF_FEW: Final = {1: 0.12, 2: 0.08, 3: 0.05, 4: 0.03}
"""By the number of whole epochs that the rate comes from: less cannot be known of so few."""


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
    """When `seen` was reached."""
    seen: float
    """Units that were trained from the beginning of this run until `last_s`."""
    total: float = 0.0
    """Units of the whole training; 0: unknown."""
    first: float = 1.0
    """Units that were trained until `first_s`."""
    begun: float = 0.0
    """Units that were begun: of a finished run, all."""
    optimizer_steps: bool = False
    """`total` counts optimizer steps: it is printed as steps, iterations or updates."""


@dataclass(frozen=True, slots=True)
class Track:
    """When how much of the training was done, and how much there is: what a rate is made of."""

    marks: Sequence[tuple[float, float]]
    """Seconds from the start, and units done."""
    epochs: bool
    total: float = 0.0
    """0: unknown."""
    period: float = 0.0
    """Units of an epoch; 0: there is no epoch."""
    total_error: float = 0.0
    """Relative standard error of the remaining work, where it is unclear from which number is counted."""
    optimizer_steps: bool = False
    begun: float = 0.0
    by_steps: bool = False
    """Marks are counted steps: that of an epoch's end comes before its validation."""
    few: int = 1
    """Whole epochs without which there is no rate, if only they are counted."""


def fit(track: Track, resolution_s: float) -> Pace | None:
    """Return a track's rate; None where too little was seen of it, or all at once.

    From the beginning of an epoch to that of another where a whole one was seen: what an epoch takes besides its steps
    belongs to it. Of a run without epochs, from mark to mark.
    """
    marks = _increasing(track.marks)
    if len(marks) < 2:
        return None
    ends = _epoch_ends(marks, track) if track.period > 0 else []
    whole_epochs = len(ends) - 1
    if track.period > 0 and whole_epochs >= track.few:
        per_s, error, used = _by_epochs(ends, resolution_s)
        return _pace(track, marks, per_s, error, used[-1])
    if track.few > 1 or len(marks) < _LEAST_MARKS:
        return None
    per_s, error, paused = _by_marks(marks, resolution_s)
    if (unseen := _unseen(track, marks[-1][1], paused=paused)) > 0:
        per_s, error = per_s / (1.0 + (UNSEEN - 1.0) * unseen), math.hypot(error, UNSEEN_ERROR * unseen)
    return _pace(track, marks, per_s, error, marks[-1])


def _pace(
    track: Track, marks: Sequence[tuple[float, float]], per_s: float, error: float, at: tuple[float, float]
) -> Pace:
    first = marks[0][1]
    typical = float(np.median(np.diff([done for _, done in marks])))
    # It went on from a checkpoint if its first count is far beyond the distance of two.
    skipped = first - typical if first > max(3.0 * typical, 1.5 if track.epochs else 0.0) else 0.0
    error = max(math.hypot(error, track.total_error), _LEAST_ERROR)
    return Pace(
        per_s,
        error,
        track.epochs,
        first_s=marks[0][0],
        last_s=at[0],
        seen=at[1] - skipped,
        total=track.total,
        first=first - skipped,
        begun=max(track.begun, at[1]),
        optimizer_steps=track.optimizer_steps,
    )


def _unseen(track: Track, done: float, *, paused: bool) -> float:
    """How far pauses are to be expected that were not seen, from 0 to 1: none after half of a training without any."""
    if track.period > 0:
        return 1.0
    return max(0.0, 1.0 - 2.0 * done / track.total) if track.total > 0 and not paused else 0.0


def _increasing(marks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that are later and further than the one before; at one time the furthest."""
    found: list[tuple[float, float]] = []
    for at_s, done in marks:
        if found and done <= found[-1][1]:
            continue
        if found and at_s <= found[-1][0]:
            found.pop()
        found.append((at_s, done))
    return found


def _epoch_ends(marks: Sequence[tuple[float, float]], track: Track) -> list[tuple[float, float]]:
    """The first mark of each epoch: between two of them whole epochs lie, each with its validation."""
    found: list[tuple[float, float]] = []
    epoch = -1
    for at_s, done in marks:
        # A count of 2 epochs may be 1.9999999 as a float; the length of an epoch in steps may be off by some per cent.
        now = math.floor(done / track.period + (-_LENGTH_ERROR if track.by_steps else 1e-6))
        if now > epoch:
            found.append((at_s, done))
            epoch = now
    return found


def _by_epochs(ends: list[tuple[float, float]], resolution_s: float) -> tuple[float, float, list[tuple[float, float]]]:
    times, done = np.array(ends).T
    durations = np.diff(times) / np.diff(done)
    first = warm_up(durations)
    span_s, span = float(times[-1] - times[first]), float(done[-1] - done[first])
    kept = durations[first:]
    few = _ERROR_OF_FEW.get(len(kept), 0.0)
    error = max(_spread(kept), few)
    return span / span_s, math.hypot(error, resolution_s / span_s / math.sqrt(6.0)), ends


def _by_marks(marks: list[tuple[float, float]], resolution_s: float) -> tuple[float, float, bool]:
    """Rate, its relative standard error, and whether there was a pause."""
    times, done = np.array(marks).T
    durations = np.diff(times) / np.diff(done)
    first = warm_up(durations)
    times, done, durations = times[first:], done[first:], durations[first:]
    span_s, span = float(times[-1] - times[0]), float(done[-1] - done[0])
    steps = np.diff(done)
    # A pause, such as a validation, that comes again falls into the span once more or once less.
    pause_s = float(np.max(np.diff(times) - steps * float(np.median(durations)), initial=0.0))
    pause = 0.5 * pause_s / span_s if pause_s > 2.0 * resolution_s else 0.0
    few = 0.5 / span if len(durations) < 4 and span >= 1.0 else 0.25 / len(durations)
    error = float(np.linalg.norm([_block_spread(times, done), pause, few, resolution_s / span_s / math.sqrt(6.0)]))
    return span / span_s, error, pause > 0


def _spread(durations: Series) -> float:
    """Relative standard error of epochs' mean duration; a drift counts whole."""
    if len(durations) < 2:
        return 0.0
    mean = float(durations.mean())
    blocks = np.array([float(one.mean()) for one in np.array_split(durations, min(_BLOCKS, len(durations)))])
    error = float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) / mean
    half = len(durations) // 2
    drift = abs(float(durations[half:].mean() - durations[:half].mean())) / mean / 2.0 if len(durations) >= 4 else 0.0
    # Of few blocks the standard deviation itself is uncertain: Student's t of so many over 1.96.
    return math.hypot(error * (1.0 + 2.5 / max(len(blocks) - 1, 1)), drift)


def _block_spread(times: Series, done: Series) -> float:
    """The same of steps, by the rates of blocks of equal time."""
    blocks = min(_BLOCKS, (len(times) - 1) // 2)
    if blocks < 2:
        return 0.1
    at_s = np.linspace(times[0], times[-1], blocks + 1)
    rates = np.diff(np.interp(at_s, times, done))
    mean = float(rates.mean())
    half = blocks // 2
    drift = abs(float(rates[half:].mean() - rates[:half].mean())) / mean / 2.0
    error = float(rates.std(ddof=1)) / math.sqrt(blocks) / mean
    return math.hypot(error * (1.0 + 2.5 / (blocks - 1)), drift)
