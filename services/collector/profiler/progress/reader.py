"""A command's progress, as far as its output and its progress file show it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from services.collector.profiler.progress.choice import Choice, Known, choose
from services.collector.profiler.progress.counters import Counters, Mark
from services.collector.profiler.progress.file import ProgressRecords
from services.collector.profiler.progress.fit import Pace
from services.collector.profiler.progress.text import Reading, Unit, Use, clean, number_of


@dataclass(slots=True)
class ProgressReader:
    """Takes lines as they come."""

    resolution_s: float
    """How exactly the time of a line is known."""
    known: Known = field(default_factory=Known)
    pattern: re.Pattern[str] | None = None
    """Of ``--progress``: its first group is the count, its second one, if any, the whole training's."""
    counters: Counters = field(default_factory=Counters)
    records: ProgressRecords = field(default_factory=ProgressRecords)
    complete: bool = True
    """All that was written has been read."""

    def take(self, line: str, elapsed_s: float) -> None:
        """Read a line that was written until `elapsed_s`, counted from the start of the workers; never raises."""
        if self.pattern is None:
            self.counters.take(line, elapsed_s)
            return
        self.counters.lines += 1
        found = self.pattern.search(clean(line))
        if found is None:
            return
        try:
            value = number_of(found[1])
            total = number_of(found[2]) if self.pattern.groups > 1 and found[2] else 0.0
        except (TypeError, ValueError):
            return  # the group has matched something else than a number
        one = Reading(Unit.UNNAMED, self.known.label, value, total, Use.TRAINING)
        self.counters.add(one, Mark(elapsed_s, value, self.counters.lines))

    def take_record(self, line: str, elapsed_s: float) -> None:
        """Read a line of the progress file; never raises."""
        self.records.take(line, elapsed_s)

    def skip(self) -> None:
        """Note that there was more output than could be read."""
        self.complete = False

    def choice(self) -> Choice:
        """Return the rate, or why it is not known; the progress file goes before all that is printed."""
        if self.records.used:
            return self.records.choice(self.known, self.resolution_s)
        found = choose(self.counters, self.known, self.resolution_s, complete=self.complete)
        if self.records.problem and found.pace is None:
            return Choice(None, self.records.problem, found.candidates)
        return found

    def pace(self) -> Pace | None:
        """Return the rate; None where it is not known."""
        return self.choice().pace
