"""Each number that is printed again and again as a series of its own: when it had which value.

A counter is identified by its unit, its label and its total, so that a training's bar and a validation's are two. Where
its value decreases it has begun anew: another run of the same counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.collector.profiler.progress.text import Reading, Unit, Use, clean, declared, readings

MAX_COUNTERS: Final = 256
MAX_MARKS: Final = 512
"""Of one run of a counter; of more every second one is dropped."""
MAX_RUNS: Final = 1_024
_MAX_DECLARED: Final = 8


class Mark(NamedTuple):
    """A counter's value at a time."""

    at_s: float
    """From the start of the workers."""
    value: float
    line: int
    """Number of the line, from 1: of two marks at the same time it says which was first."""
    within: float | None = None
    """Of an epoch's number: the part of the epoch that the same line gives, ``120/500`` as 0.24."""


@dataclass(slots=True)
class Run:
    """From one beginning of a counter to the next."""

    number: int
    """From 0."""
    first: Mark
    last: Mark
    marks: list[Mark] = field(default_factory=list)
    """Of a run before the last two: none."""

    @property
    def lasted_s(self) -> float:
        """From its first mark to its last."""
        return self.last.at_s - self.first.at_s

    def add(self, mark: Mark) -> None:
        """Append a mark of a larger value; of several at one time the last one counts."""
        self.last = mark
        if len(self.marks) > 1 and self.marks[-1].at_s >= mark.at_s:
            self.marks.pop()
        self.marks.append(mark)
        if len(self.marks) > MAX_MARKS:
            self.marks = [*self.marks[:-1:2], mark]


@dataclass(slots=True)
class Counter:
    """One counter of a log."""

    unit: Unit
    label: str
    total: float
    """0: none is printed."""
    use: Use
    bare: bool
    """All its lines say nothing else."""
    drawn: bool
    """It is a bar's, which counts what is done."""
    runs: list[Run]
    changes: int = 0
    seen: int = 1
    """Lines that it was in."""

    def add(self, value: float, mark: Mark, bare: bool) -> None:
        """Take the value that a line has."""
        now = self.runs[-1]
        self.seen += 1
        self.bare = self.bare and bare
        if value > now.last.value:
            now.add(mark)
            self.changes += 1
        elif value < now.last.value:
            self._begin_anew(mark)

    def _begin_anew(self, mark: Mark) -> None:
        self.changes += 1
        if len(self.runs) > 1:
            self.runs[-2].marks.clear()
        self.runs.append(Run(self.runs[-1].number + 1, mark, mark, [mark]))
        if len(self.runs) > MAX_RUNS:
            self.runs = [*self.runs[:-2:2], *self.runs[-2:]]

    @property
    def name(self) -> str:
        """Label and total, as people see and give it: ``Epoch: [#][#/5005``, ``iter #``, ``#/500`` of a bar."""
        space = "" if not self.label or self.label.endswith(("[", "(", "/")) else " "
        return f"{self.label}{space}#" + (f"/{self.total:g}" if self.total else "")

    @property
    def first(self) -> Mark:
        """The first mark of all."""
        return self.runs[0].first

    @property
    def last(self) -> Mark:
        """The last change of all."""
        return self.runs[-1].last

    @property
    def restarts(self) -> int:
        """How often it has begun anew."""
        return self.runs[-1].number

    @property
    def active_s(self) -> float:
        """Time within its runs."""
        return sum(run.lasted_s for run in self.runs)

    @property
    def complete(self) -> bool:
        """Whether its last run has reached its total."""
        return self.total > 0 and self.last.value >= self.total


@dataclass(slots=True)
class Counters:
    """All counters of a command's output."""

    lines: int = 0
    last_s: float = 0.0
    """When the last line with a counter was read."""
    dropped: int = 0
    """Counters that were given up, since there were too many."""
    _counters: dict[tuple[Unit, str, float], Counter] = field(default_factory=dict)
    _declared: dict[Unit, set[float]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Counter]:
        """In the order of their first lines."""
        return iter(self._counters.values())

    def take(self, line: str, at_s: float) -> None:
        """Read a line as it was written; never raises."""
        self.lines += 1
        text = clean(line)
        found = readings(text)
        for one in found:
            self.add(one, Mark(at_s, one.value, self.lines, _within(one, found)))
        if (setting := declared(text)) is not None:
            totals = self._declared.setdefault(setting.unit, set())
            if len(totals) < _MAX_DECLARED:
                totals.add(setting.total)

    def add(self, one: Reading, mark: Mark) -> None:
        """Take one number of a line."""
        self.last_s = mark.at_s
        key = (one.unit, one.label, one.total)
        counter = self._counters.get(key)
        if counter is not None:
            counter.add(one.value, mark, one.bare)
            return
        if len(self._counters) >= 2 * MAX_COUNTERS:
            self._drop()
        run = Run(0, mark, mark, [mark])
        self._counters[key] = Counter(one.unit, one.label, one.total, one.use, one.bare, one.drawn, [run])

    def declared(self, unit: Unit) -> float:
        """Return the whole training's number of epochs or steps by the settings that were printed; 0 if unclear."""
        totals = self._declared.get(unit, set())
        return next(iter(totals)) if len(totals) == 1 else 0.0

    def _drop(self) -> None:
        """Keep those that were printed most often, and of the others the newest."""
        kept = sorted(self._counters.items(), key=lambda item: (item[1].seen, item[1].last.line))[-MAX_COUNTERS:]
        self.dropped += len(self._counters) - len(kept)
        self._counters = dict(sorted(kept, key=lambda item: item[1].first.line))


def _within(one: Reading, found: tuple[Reading, ...]) -> float | None:
    """The part of an epoch that the line of its number gives."""
    if one.unit is not Unit.EPOCH:
        return None
    parts = [other.value / other.total for other in found if other.unit is not Unit.EPOCH and other.total > 0]
    return parts[-1] if parts else None
