"""Faults in a cycle, as thesis 3.5.2.1 injects them: a port down, then all up, then the next port in turn."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

from tests.bench.thorn_job_ground import FaultPort


@dataclass(frozen=True, slots=True)
class FaultCycle:
    """Seconds before the first fault (from the first iteration on), down and up; how many faults at most."""

    lead_s: float = 5.0
    down_s: float = 20.0
    up_s: float = 20.0
    at_most: int | None = None


@dataclass(slots=True)
class InjectedFault:
    """What was done, in CLOCK_MONOTONIC seconds; `until` is None while it lasts."""

    port: str
    since: float
    until: float | None = None


@dataclass(slots=True)
class FaultInjector:
    """Runs the cycle in a thread of its own, that sleeps between faults."""

    ports: tuple[FaultPort, ...]
    cycle: FaultCycle
    faults: list[InjectedFault] = field(default_factory=list)
    failure: Exception | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def down(self) -> str | None:
        """The port that is down now."""
        return self.faults[-1].port if self.faults and self.faults[-1].until is None else None

    def start(self) -> None:
        """Begin the cycle; does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the cycle: every port is up again on return.

        Raises:
            OSError, subprocess.CalledProcessError: a fault could not be injected or lifted.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._inject()
        except Exception as error:  # noqa: BLE001 - handed to whoever stops us
            self.failure = error

    def _inject(self) -> None:
        if self._stop.wait(self.cycle.lead_s):
            return
        for port in itertools.islice(itertools.cycle(self.ports), self.cycle.at_most):
            since_s = time.monotonic()
            port.fail()
            self.faults.append(InjectedFault(port.name, since_s))
            try:
                self._stop.wait(self.cycle.down_s)
            finally:
                port.restore()
                self.faults[-1].until = time.monotonic()
            if self._stop.wait(self.cycle.up_s):
                return
