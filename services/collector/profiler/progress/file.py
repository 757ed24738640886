"""The progress file: JSON lines that a training appends for the profiler, exact where printed output has to be guessed.

    {"step": 120, "steps": 5000}
    {"epoch": 2.5, "epochs": 10}

``step`` and ``epoch`` are what is done of the whole training, from 0; ``steps`` and ``epochs`` are the whole. A line
may have all four, and other fields. Each later line counts at least as far.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Final

from services.collector.profiler.progress.choice import Choice, Known
from services.collector.profiler.progress.counters import Mark, Run
from services.collector.profiler.progress.fit import Track, fit

VARIABLE: Final = "TURNBUCKLE_PROGRESS_FILE"
_MAX_RECORD_CHARACTERS: Final = 2_000


@dataclass(slots=True)
class ProgressRecords:
    """What was read of a progress file."""

    refused: int = 0
    """Lines that are none of its format."""
    _runs: dict[str, Run] = field(default_factory=dict)
    _totals: dict[str, float] = field(default_factory=dict)
    _backwards: str = ""

    @property
    def used(self) -> bool:
        """Whether it has any line of its format."""
        return bool(self._runs)

    @property
    def problem(self) -> str:
        """Why a file that was written is of no use; empty if there is no such problem."""
        if self.refused and not self._runs:
            return f'{VARIABLE} has no line such as {{"step": 120, "steps": 5000}}; {self.refused} others were left out'
        return ""

    def take(self, line: str, at_s: float) -> None:
        """Read one whole line; never raises."""
        if not line.strip():
            return
        values = _values(line)
        if not values:
            self.refused += 1
            return
        for name, whole in (("step", "steps"), ("epoch", "epochs")):
            if whole in values and values[whole] > 0:
                self._totals[name] = values[whole]
            if name in values:
                self._add(name, Mark(at_s, values[name], 0))

    def _add(self, name: str, mark: Mark) -> None:
        run = self._runs.get(name)
        if run is None:
            self._runs[name] = Run(0, mark, mark, [mark])
        elif mark.value > run.last.value:
            run.add(mark)
        elif mark.value < run.last.value:
            self._backwards = name

    def choice(self, known: Known, resolution_s: float) -> Choice:
        """Return the rate by the file: by steps if it has a number of them, else by epochs."""
        if self._backwards:
            name = self._backwards
            return Choice(
                None, f"{VARIABLE} counts {name} backwards: it counts the whole training, not an epoch's part"
            )
        totals = {"step": float(known.steps), "epoch": float(known.epochs)}
        totals = {name: totals[name] or self._totals.get(name, 0.0) for name in totals}
        name = max(self._runs, key=lambda one: (totals[one] > 0, len(self._runs[one].marks), one == "step"))
        run = self._runs[name]
        marks = [(mark.at_s, mark.value) for mark in run.marks]
        period = 1.0 if name == "epoch" else totals["step"] / totals["epoch"] if all(totals.values()) else 0.0
        # One line per epoch: each is the end of one.
        few = 2 if name == "epoch" and all(mark.value == int(mark.value) for mark in run.marks) else 1
        track = Track(
            marks,
            epochs=name == "epoch",
            total=totals[name],
            period=period,
            by_steps=few == 1,
            optimizer_steps=name == "step",
            begun=run.last.value,
            few=few,
        )
        pace = fit(track, resolution_s)
        why = f"{VARIABLE} has {len(marks)} different counts: too few for a rate, let it train longer"
        return Choice(pace, "" if pace else why)


def _values(line: str) -> dict[str, float]:
    """The four fields of a line that are finite numbers from 0; empty where it is no such line."""
    if len(line) > _MAX_RECORD_CHARACTERS:
        return {}
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(plain, dict) or not {"step", "epoch"} & plain.keys():
        return {}
    found: dict[str, float] = {}
    for name in ("step", "steps", "epoch", "epochs"):
        value = plain.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
            continue
        if math.isfinite(value) and value >= 0:
            found[name] = float(value)
    return found if {"step", "epoch"} & found.keys() else {}
