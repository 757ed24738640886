"""A job's traffic profile as a link sees it: no faster than the link, on the grid of a circle, or at any time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from schemas.scheduling import MAX_PERIOD_MS, TrafficPhase, TrafficProfile
from services.scheduler.core.interleaving.circle import Iteration, Sending

_PARTS: Final = 64
"""Of a link's rate: sums of rates that are closer count as one."""


def slowed(profile: TrafficProfile, bits_per_s: float) -> TrafficProfile:
    """Of a job whose slowest link has this rate: what it sends takes longer, and its iteration with it."""
    phases: list[TrafficPhase] = []
    later_ms = 0
    for phase in profile.phases:
        length_ms = phase.length_ms
        rate = min(phase.bits_per_s, int(bits_per_s))
        longer_ms = round(length_ms * phase.bits_per_s / rate) if rate else length_ms
        begin_ms = min(phase.begin_ms + later_ms, MAX_PERIOD_MS)
        end_ms = min(begin_ms + longer_ms, MAX_PERIOD_MS)
        phases.append(TrafficPhase(begin_ms=begin_ms, end_ms=end_ms, bits_per_s=rate))
        later_ms += longer_ms - length_ms
    if not later_ms:
        return profile
    period_ms = min(profile.period_ms + later_ms, MAX_PERIOD_MS)
    return profile.model_copy(update={"phases": tuple(phases), "period_ms": period_ms})


def on_grid(profile: TrafficProfile, period: int, step_ms: float) -> Iteration:
    """The same bytes in whole steps.

    Args:
        profile: of the job.
        period: in steps, perhaps longer than its own.
        step_ms: length of a step.
    """
    sendings = []
    for phase in profile.phases:
        length_ms = phase.length_ms
        length = min(max(1, round(length_ms / step_ms)), period)
        sendings.append(
            Sending(round(phase.begin_ms / step_ms), length, phase.bits_per_s * length_ms / (length * step_ms))
        )
    return Iteration(period, tuple(sendings))


def independent_score(profiles: Sequence[TrafficProfile], bits_per_s: float) -> float:
    """The score that is to be expected of jobs that begin at any time, whatever the others do."""
    chances: dict[float, float] = {0.0: 1.0}
    for profile in profiles:
        rates: defaultdict[float, float] = defaultdict(float)
        for phase in profile.phases:
            rates[float(phase.bits_per_s)] += phase.length_ms / profile.period_ms
        rates[0.0] += max(0.0, 1.0 - sum(rates.values()))
        together: defaultdict[float, float] = defaultdict(float)
        for known, chance in chances.items():
            for rate, share in rates.items():
                total = known + rate
                together[round(total / bits_per_s * _PARTS) / _PARTS * bits_per_s] += chance * share
        chances = together
    excess = sum(chance * max(0.0, rate - bits_per_s) for rate, chance in chances.items())
    return 1.0 - excess / bits_per_s
