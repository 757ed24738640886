"""Training jobs on one link, simulated in steps of 10 ms: they compute, send, and begin anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.runner.core.sending_phases import Counted, Iteration, PhaseBegin, SendingPhases

STEP_NS = 10_000_000
STEP_S = STEP_NS / 1e9
LINK_BYTES_PER_S = 12_500_000


@dataclass
class SimulatedJob:
    """One job; its counters are read at each step."""

    compute_s: float
    send_bytes: int
    starts_s: float = 0.0
    jitter: Callable[[], float] = lambda: 0.0
    """Added to the computation of an iteration, seconds."""
    phases: SendingPhases = field(default_factory=SendingPhases)
    iterations: list[Iteration] = field(default_factory=list)
    sent_bytes: int = 0
    _left_s: float = 0.0
    _left_bytes: float = 0.0

    def __post_init__(self) -> None:
        self._left_s = self.starts_s

    @property
    def is_sending(self) -> bool:
        """Whether it takes a part of the link."""
        return self._left_bytes > 0

    def step(self, now_s: float, link_bytes: float) -> None:
        """Go on for one step with that share of the link, then be sampled."""
        if self.is_sending:
            moved = min(self._left_bytes, link_bytes)
            self._left_bytes -= moved
            self.sent_bytes += round(moved)
            if self._left_bytes <= 0:
                self._left_s = max(STEP_S, self._left_s + self.compute_s + self.jitter())
        else:
            self._left_s -= STEP_S
            if self._left_s <= 1e-9:
                self._left_bytes = self.send_bytes
        seen = self.phases.observe(Counted(round((now_s + STEP_S) * 1e9), self.sent_bytes))
        if isinstance(seen, PhaseBegin) and seen.iteration is not None:
            self.iterations.append(seen.iteration)


def run_jobs(jobs: list[SimulatedJob], seconds: float, on_step: Callable[[float], None] = lambda _: None) -> None:
    """Let jobs share the link evenly."""
    for step in range(round(seconds / STEP_S)):
        now_s = step * STEP_S
        on_step(now_s)
        sending = sum(job.is_sending for job in jobs)
        for job in jobs:
            job.step(now_s, LINK_BYTES_PER_S * STEP_S / max(1, sending))
