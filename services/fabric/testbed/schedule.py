"""Periodic faults, as in thesis 3.5.2: 20 s down, 20 s up, at one switch or at both in turn.

schedule = FaultSchedule(lab, alternating(Fault(kind=FaultKind.BLACKHOLE)), FaultTiming(down_s=20, up_s=20, times=9))
schedule.run()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from services.fabric.testbed.faults import Fault
from services.fabric.testbed.lab import Lab


@dataclass(frozen=True, slots=True)
class FaultTiming:
    """When faults come."""

    down_s: float = 20.0
    up_s: float = 20.0
    lead_s: float | None = None
    """Before the first fault; None: as `up_s`."""
    times: int | None = None
    """How many; None: until it is stopped, or the series ends."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One fault that was; CLOCK_MONOTONIC in nanoseconds."""

    fault: Fault
    injected_ns: int
    restored_ns: int


class FaultSchedule:
    """Carries a series of faults out."""

    def __init__(
        self, lab: Lab, faults: Iterable[Fault], timing: FaultTiming, report: Callable[[str], None] = lambda _: None
    ) -> None:
        """`faults` may be endless: `faults.alternating`, `itertools.repeat`."""
        self._lab = lab
        self._faults = faults
        self._rhythm = timing
        self._report = report
        self._stop = threading.Event()
        self.occurrences: list[Occurrence] = []

    def run(self) -> None:
        """Until the last fault is restored, or `stop`. A fault in force is restored whatever happens.

        Raises:
            CommandError, OSError: a fault could not be injected or restored.
        """
        timing = self._rhythm
        due_s = time.monotonic() + (timing.up_s if timing.lead_s is None else timing.lead_s)
        for fault in islice(self._faults, timing.times):
            if self._wait_until(due_s):
                return
            with self._lab.fault(fault) as injected_ns:
                self._report(f"{fault} for {timing.down_s:g} s")
                due_s += timing.down_s
                stopped = self._wait_until(due_s)
            self.occurrences.append(Occurrence(fault, injected_ns, time.monotonic_ns()))
            due_s += timing.up_s
            if stopped:
                return

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._stop.set()

    def _wait_until(self, due_s: float) -> bool:
        """Whether it was stopped meanwhile."""
        return self._stop.wait(max(0.0, due_s - time.monotonic()))
