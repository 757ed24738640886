"""Which counter of a log counts the training, and what the whole of it is; else why that is not known.

A log nests: an epoch has steps, and may have a validation. In this order:

1. the counter that ``--progress`` names
2. epochs: of a number, by the distance of the beginnings of two (so that a validation belongs to its epoch); before
   there is a whole one, by the steps within it
3. a counter of steps that went on from one epoch to the next: its total is the whole training's
4. a counter over another one that has begun anew meanwhile
5. steps, iterations or updates where nothing is printed of epochs
6. a counter that begins anew: each of its runs is an epoch

A validation's counters, those of what is done before the training, and a single bar without a name or an epoch beside
it (which may be the whole training's, or its first epoch's) are no progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from services.collector.profiler.progress.counters import Counter, Counters, Mark, Run
from services.collector.profiler.progress.fit import Pace, Track, fit
from services.collector.profiler.progress.text import Unit, Use

_MAX_CANDIDATES: Final = 6
_HALF_A_UNIT: Final = 0.3
"""Standard error of a count that may be one more or one less than half: 1.96 of them are 0.6."""
_END_OF_EPOCH: Final = 0.9
"""An epoch's line that comes after this part of its steps is printed at its end."""
_DISAGREEMENT: Final = 1.5
_LEAST_SHARE: Final = 0.5
"""Of the time since the first epoch's number: a counter that moved for less of it does not explain it."""
_MOST_OF_AN_EPOCH: Final = 0.999
_LEAST_STEADY_MARKS: Final = 4
_MOST_BEND: Final = 0.4
"""Of a counter's growth: how far it may be from a straight line, at a long pause or a slow beginning."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the command line says of the training; 0 and empty: nothing."""

    epochs: int = 0
    steps: int = 0
    label: str = ""
    """Of ``--progress``: a counter's name as it is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A counter of the output, for people."""

    name: str
    """As ``--progress`` takes it."""
    value: float
    per_s: float
    """Within its runs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The rate of training, or why it is not known."""

    pace: Pace | None = None
    why: str = ""
    candidates: tuple[Candidate, ...] = ()


def choose(counters: Counters, known: Known, resolution_s: float, *, complete: bool = True) -> Choice:
    """Return the rate of the counter that counts the training.

    Args:
        counters: Of the whole output.
        known: What the command line says.
        resolution_s: How exactly the time of a line is known.
        complete: Whether all lines were read: else a counter may have begun anew without notice.
    """
    candidates = _candidates(counters)
    if known.label:
        return replace(_named(counters, known, resolution_s), candidates=candidates)
    training = [one for one in counters if one.use is Use.TRAINING]
    tracks = _Tracks(counters, training, known, complete)
    paces = [pace for track in tracks.all() if (pace := fit(track, resolution_s)) is not None]
    if not paces:
        return Choice(None, tracks.why, candidates)
    best = next((pace for pace in paces if pace.total > 0), paces[0])
    if any(_disagree(best, other) for other in paces):
        return Choice(None, "two counters of its output disagree about the whole training", candidates)
    return Choice(best, "", candidates)


def _named(counters: Counters, known: Known, resolution_s: float) -> Choice:
    """The rate by the counter that the user has named; of several with one label the last that moved."""
    wanted = "".join(known.label.split())
    found = [one for one in counters if one.label == known.label or "".join(one.name.split()) == wanted]
    if not found:
        return Choice(None, f"none of its output is the counter {known.label!r}")
    one = max(found, key=lambda counter: (counter.changes, counter.total))
    epochs = one.unit is Unit.EPOCH
    track = _runs_as_epochs(one, known, 0.0) if one.restarts else _as_whole(one, known, epochs=epochs)
    pace = fit(track, resolution_s)
    return Choice(pace, "" if pace else f"the counter {known.label!r} has not changed often enough yet")


def _candidates(counters: Counters) -> tuple[Candidate, ...]:
    moved = [one for one in counters if one.changes]
    moved.sort(key=lambda one: (one.use is Use.TRAINING, one.total > 0, one.active_s), reverse=True)
    return tuple(Candidate(one.name, one.last.value, _rate_within(one)) for one in moved[:_MAX_CANDIDATES])


def _rate_within(one: Counter) -> float:
    counted = sum(run.last.value - run.first.value for run in one.runs)
    return counted / one.active_s if one.active_s > 0 else 0.0


def _whole_s(pace: Pace) -> float:
    return pace.last_s + (pace.total - pace.seen) / pace.per_s


def _disagree(best: Pace, other: Pace) -> bool:
    """Whether two whole durations differ by more than both errors, and by more than half."""
    if min(best.total, other.total) <= 0:
        return False
    ratio = math.log(max(_whole_s(best), 1e-9) / max(_whole_s(other), 1e-9))
    return abs(ratio) > math.log(_DISAGREEMENT) + 2.0 * math.hypot(best.relative_error, other.relative_error)


class _Tracks:
    """The tracks that a log's training counters make, the surest first."""

    def __init__(self, counters: Counters, training: Sequence[Counter], known: Known, complete: bool) -> None:
        self._counters = counters
        self._known = known
        self._complete = complete
        self._epochs = [one for one in training if one.unit is Unit.EPOCH]
        self._parts = [one for one in training if one.unit is not Unit.EPOCH and one.total > 0 and one.changes]
        self._steps = [one for one in training if one.unit is Unit.STEP and one.changes and not one.restarts]
        self._epoch_total = float(known.epochs) or counters.declared(Unit.EPOCH)
        self._step_total = float(known.steps) or counters.declared(Unit.STEP)
        self.why = ""

    def all(self) -> list[Track]:
        """Every track; none where no counter is the training's for sure."""
        numbered = [one for one in self._epochs if not one.restarts]
        if self._epochs and not numbered:
            self.why = "its epochs begin anew: folds or several trainings, of an unknown number"
            return []
        found: list[Track] = []
        if numbered:
            outer = min(
                numbered, key=lambda one: (not one.changes and len(numbered) > 1, one.total <= 0, one.first.line)
            )
            found += self._by_epochs(outer)
        found += self._by_step_total()
        if not numbered:
            found += self._over_another() or self._by_steps() or self._by_runs()
        if not found:
            self.why = self._why()
        return found

    def _why(self) -> str:
        single = [one for one in self._parts if not one.restarts and not self._ended(one)]
        if len(single) == 1 and not self._epochs:
            one = single[0]
            return (
                f"its counter {one.name!r} may be of the whole training or of the first epoch: give --steps, "
                f"--epochs 1, or --progress {one.name!r} where it is of the whole"
            )
        return ""

    # Epochs that are printed.

    def _by_epochs(self, outer: Counter) -> list[Track]:
        marks = outer.runs[0].marks
        if any(mark.value != int(mark.value) for mark in marks):
            return self._by_fraction(outer)
        spanning = self._spanning(outer)
        if spanning is not None:
            return self._by_spanning(spanning, _steps_per_epoch(spanning, marks))
        inner = self._inner(outer)
        if inner is not None and self._printed_at_end(outer, inner):
            total, error = self._total_of(outer)
            track = _runs_as_epochs(inner, self._known, total)
            return [replace(track, total_error=error)] if self._complete else []
        return [self._numbered(outer, inner)]

    def _by_fraction(self, outer: Counter) -> list[Track]:
        """``'epoch': 0.25``: how far it is, to the digit."""
        marks = outer.runs[0].marks
        spanning = self._spanning(outer)
        total = outer.total or self._epoch_total
        if spanning is not None and not total:
            per_epoch = _steps_per_epoch(spanning, marks)
            epochs = spanning.total / per_epoch if per_epoch > 0 else 0.0
            # Epochs are mostly whole, and the two counts are read at slightly different times.
            total = float(round(epochs)) if epochs and abs(epochs - round(epochs)) < 0.1 * max(epochs, 1) else 0.0
            if not total:
                return self._by_spanning(spanning, per_epoch)
            return self._by_spanning(spanning, spanning.total / total)
        return [Track([(mark.at_s, mark.value) for mark in marks], epochs=True, total=total, period=1.0, by_steps=True)]

    def _by_spanning(self, one: Counter, per_epoch: float) -> list[Track]:
        marks = [(mark.at_s, mark.value) for mark in one.runs[0].marks]
        return [
            Track(
                marks,
                epochs=False,
                total=one.total,
                period=per_epoch,
                by_steps=True,
                optimizer_steps=one.unit is Unit.STEP,
            )
        ]

    def _numbered(self, outer: Counter, inner: Counter | None) -> Track:
        """By an epoch's number, and within it by the steps of their total."""
        marks = outer.runs[0].marks
        base = 0.0 if outer.drawn else min(outer.first.value, 1.0)
        total, error = self._total_of(outer)
        parts = any(mark.within is not None for mark in marks)
        # Of a line that comes several times in an epoch the first one is near its beginning.
        repeated = outer.seen > 2 * (outer.changes + 1)
        at_end = not (outer.drawn or outer.bare or parts or repeated or inner is not None)
        if at_end:
            done = [(mark.at_s, mark.value - base + 1.0) for mark in marks]
            return Track(done, epochs=True, total=total, period=1.0, total_error=error, begun=done[-1][1], few=2)
        done = [(mark.at_s, mark.value - base + (mark.within or 0.0)) for mark in marks]
        now = outer.last.value - base
        if inner is not None and inner.last.line >= outer.last.line:
            run = inner.runs[-1]
            # What is printed for an epoch that has gone by is not of the one under way.
            done += [(m.at_s, now + _part(m.value, inner.total)) for m in run.marks if m.line >= outer.last.line]
        elif inner is None and outer.bare and total and not outer.drawn:
            # Whether such a line stands at the beginning of its epoch or at its end cannot be seen.
            error = math.hypot(error, _HALF_A_UNIT / total)
        few = 1 if outer.drawn or inner is not None or parts else 2
        return Track(done, epochs=True, total=total, period=1.0, total_error=error, begun=now + 1.0, few=few)

    def _total_of(self, outer: Counter) -> tuple[float, float]:
        """Number of epochs, and the relative standard error of it where counting from 0 leaves it open."""
        if self._known.epochs:
            return float(self._known.epochs), 0.0
        if not outer.total:
            return self._epoch_total, 0.0
        if outer.first.value > 0 or outer.drawn:
            return outer.total, 0.0
        if outer.last.value >= outer.total:
            return outer.total + 1.0, 0.0
        if self._epoch_total in (outer.total, outer.total + 1.0):
            return self._epoch_total, 0.0
        # "Epoch 0/4": of five (Lightning's rich bar), or of four.
        return outer.total + 0.5, _HALF_A_UNIT / (outer.total + 0.5)

    def _inner(self, outer: Counter) -> Counter | None:
        """The training's steps within an epoch: of what moves since the first epoch's number that for the longest."""
        found = [one for one in self._parts if one.last.line >= outer.first.line and not self._ended(one)]
        return max(found, key=lambda one: one.active_s, default=None)

    def _spanning(self, outer: Counter) -> Counter | None:
        """A counter of a total that goes on from one epoch to the next."""
        moved_s = self._counters.last_s - outer.first.at_s
        found = [
            one
            for one in self._parts
            if not one.restarts and one.active_s >= _LEAST_SHARE * moved_s and _steady(one) and _spans(one, outer)
        ]
        return max(found, key=lambda one: one.active_s, default=None)

    def _printed_at_end(self, outer: Counter, inner: Counter) -> bool:
        if inner.first.line >= outer.first.line or outer.runs[0].first.within is not None:
            return False
        before = [run for run in inner.runs if run.first.line < outer.first.line]
        return len(before) == 1 and (len(inner.runs) > 1 or inner.last.value >= _END_OF_EPOCH * inner.total)

    # No word of epochs.

    def _by_step_total(self) -> list[Track]:
        """A counter whose total the command line or the settings have as the whole training's steps."""
        total = self._step_total
        for one in self._parts:
            if total and one.total == total and not one.restarts:
                return self._by_spanning(one, 0.0)
            if self._known.steps and not self._epochs and not self._ended(one) and total % one.total == 0:
                return [_runs_as_epochs(one, Known(), total / one.total)] if self._complete else []
        if total:
            found = [one for one in self._steps if not one.total]
            if found:
                return [_as_whole(max(found, key=lambda one: one.changes), replace(self._known, steps=int(total)))]
        return []

    def _over_another(self) -> list[Track]:
        """A bar over bars: it goes on where another one begins anew."""
        for one in self._parts:
            if one.restarts or self._ended(one):
                continue
            within = [
                run
                for other in self._parts
                if other.restarts and other.first.line >= one.first.line
                for run in other.runs
                if one.first.line <= run.first.line <= one.last.line
            ]
            if len(within) > 1 and one.first.value < one.last.value:
                # A bar counts what is done; a number counts the epoch under way, from 0 or 1.
                base = 0.0 if one.drawn else min(one.first.value, 1.0)
                marks = [(mark.at_s, mark.value - base) for mark in one.runs[0].marks]
                begun = one.last.value + (0.0 if one.drawn else 1.0 - base)
                return [Track(marks, epochs=True, total=one.total, period=1.0, begun=begun)]
        return []

    def _by_steps(self) -> list[Track]:
        if any(one.restarts for one in self._parts):
            return []
        found = [one for one in self._steps if not self._ended(one)]
        if not found or (self._known.epochs > 1 and not self._known.steps and any(one.total for one in found)):
            return []
        one = max(found, key=lambda counter: (counter.total > 0, counter.changes))
        return [_as_whole(one, self._known)]

    def _by_runs(self) -> list[Track]:
        found = [one for one in self._parts if one.restarts and not self._ended(one)]
        if found and self._complete:
            one = max(found, key=lambda counter: counter.active_s)
            if not _alternates(one):
                return [_runs_as_epochs(one, self._known, self._epoch_total)]
        single = [one for one in self._parts if not one.restarts and not self._ended(one)]
        if self._known.epochs == 1 and len(single) == 1:
            return [replace(_as_whole(single[0], self._known), total=single[0].total)]
        return []

    def _ended(self, one: Counter) -> bool:
        """Whether it has ended, and others went on since for longer than it took: it was a preparation."""
        since_s = self._counters.last_s - one.last.at_s
        pause_s = max((b.first.at_s - a.last.at_s for a, b in zip(one.runs, one.runs[1:], strict=False)), default=0.0)
        return one.complete and since_s > max(2.0 * one.active_s / len(one.runs), 2.0 * pause_s) > 0


def _steady(one: Counter) -> bool:
    """Whether a counter grows in proportion to the time, pauses aside: a number that happens to grow does not."""
    marks = one.runs[0].marks
    if len(marks) < _LEAST_STEADY_MARKS:
        return False
    times, values = np.array([(mark.at_s, mark.value) for mark in marks]).T
    if times[-1] <= times[0]:
        return False
    line = values[0] + (values[-1] - values[0]) * (times - times[0]) / (times[-1] - times[0])
    return bool(np.abs(values - line).max() < _MOST_BEND * (values[-1] - values[0]))


def _spans(one: Counter, outer: Counter) -> bool:
    """Whether it went on over an epoch's end: a new number, a part of an epoch, or an end before its own total."""
    marks = outer.runs[0].marks
    if one.first.line > outer.last.line or marks[-1].line > one.last.line + 8 * len(marks) + 1_000:
        return False
    if any(mark.value != int(mark.value) for mark in marks):
        return _linear(one, marks)
    if any(one.first.line < mark.line < one.last.line for mark in marks[1:]):
        return True
    # Its first epoch was printed at the end of one, and it goes on.
    first = marks[0]
    value = _value_at(one.runs[0], first)
    return (
        first.within is None
        and first.value >= 1
        and one.first.line < first.line < one.last.line
        and 0 < value < _END_OF_EPOCH * one.total
        and not outer.bare
    )


def _linear(one: Counter, marks: Sequence[Mark]) -> bool:
    """Whether a counter and the parts of epochs are in proportion: both grew, in the same time."""
    if one.changes < 2:
        return False
    inside = [mark for mark in marks if one.first.at_s <= mark.at_s <= one.last.at_s + 1e-9]
    if len(inside) < 2:
        return False
    ratios = [_value_at(one.runs[0], mark) / mark.value for mark in inside if mark.value > 0]
    late = ratios[len(ratios) // 2 :]
    return bool(late) and min(late) > 0 and max(late) < 1.5 * min(late)


def _steps_per_epoch(one: Counter, marks: Sequence[Mark]) -> float:
    """By the last of the marks, at which the two counts are known best."""
    inside = [mark for mark in marks if mark.at_s <= one.last.at_s + 1e-9 and mark.value > 0]
    if not inside:
        return 0.0
    whole = all(mark.value == int(mark.value) for mark in marks)
    if whole and len(inside) > 1:
        values = [_value_at(one.runs[0], mark) for mark in inside]
        return (values[-1] - values[0]) / (inside[-1].value - inside[0].value)
    return _value_at(one.runs[0], inside[-1]) / inside[-1].value


def _value_at(run: Run, at: Mark) -> float:
    """A run's value at another counter's mark; between two marks in proportion to the time."""
    return float(np.interp(at.at_s, [mark.at_s for mark in run.marks], [mark.value for mark in run.marks]))


def _part(value: float, total: float) -> float:
    """The part of the epoch under way that its steps are: not all of it, since a validation may follow."""
    return min(value / total, _MOST_OF_AN_EPOCH)


def _runs_as_epochs(one: Counter, known: Known, total: float) -> Track:
    """Each run of a counter as an epoch: from the beginning of one to that of the next."""
    size = one.total or max((run.last.value for run in one.runs), default=1.0) or 1.0
    done = [(run.first.at_s, run.number + run.first.value / size) for run in one.runs]
    now = one.runs[-1]
    done += [(mark.at_s, now.number + _part(mark.value, size)) for mark in now.marks[1:]]
    return Track(done, epochs=True, total=float(known.epochs) or total, period=1.0, begun=now.number + 1.0)


def _as_whole(one: Counter, known: Known, *, epochs: bool = False) -> Track:
    """A counter that counts the whole training."""
    marks = [(mark.at_s, mark.value) for mark in one.runs[0].marks]
    total = one.total or float(known.epochs if epochs else known.steps)
    return Track(marks, epochs=epochs, total=total, optimizer_steps=one.unit is Unit.STEP, begun=one.last.value)


def _alternates(one: Counter) -> bool:
    """Whether its runs are long and short in turn: a training's and a validation's bar of one length."""
    lasted = np.array([run.lasted_s for run in one.runs[:-1]])
    if len(lasted) < 3:
        return False
    even, odd = lasted[::2], lasted[1::2]
    return bool(even.min() > 1.3 * odd.max() or odd.min() > 1.3 * even.max())
