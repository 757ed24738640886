"""Measured runs from the bus, of so many trainings at most."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final

from schemas.measured_runs import MeasuredRun
from schemas.trainings import TrainingEvent

MOST: Final = 5_000
"""Runs; the stream keeps 500 events of a host."""


class KnownRuns:
    """One of each start of a training, by order of arrival; where they are too many, the first are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._runs: dict[str, MeasuredRun] = {}
        self._arrivals = itertools.count(1)

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, event: TrainingEvent) -> None:
        """Take over what an event says of a run; most say nothing.

        Runs are in the order in which they arrive, whatever their hosts' clocks say. One that arrives again comes
        last, so that they are in the stream's order once that was read.
        """
        if event.run is None:
            return
        self._runs.pop(event.message_id, None)
        self._runs[event.message_id] = event.run.model_copy(update={"ended_ns": next(self._arrivals)})
        if len(self._runs) > self._most:
            del self._runs[next(iter(self._runs))]

    def of(self, kinds: Collection[str]) -> list[MeasuredRun]:
        """Those on these kinds of devices."""
        return [run for run in self._runs.values() if set(run.kinds) == set(kinds)]
