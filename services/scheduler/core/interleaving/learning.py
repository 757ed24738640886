"""A job's traffic profile from samples of its iterations. Pure.

A sample is what happened, not what the job would do alone: where jobs send at the same moment, each needs longer. How
long a job computes and how much it sends do not depend on the others; so a profile is made of these, and of the rate at
which it sends where nothing is in its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from schemas.scheduling import MAX_PERIOD_MS, IterationSample, TrafficPhase, TrafficProfile

KEPT: Final = 8
"""Samples, the latest of a worker, of which a profile is made."""
AGREEING: Final = 3
"""So many of them with as many bytes are enough."""
BYTES_WITHIN: Final = 0.10
CHANGED_BY: Final = 0.10
"""A profile that differs by less is the same."""
REFINED_BY: Final = 0.002
"""The same, of the first one that is made of `KEPT` samples: one of `AGREEING` may be wrong by some percent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What samples say of a job."""

    computing_us: float
    """Of an iteration: without sending and pauses."""
    sending_us: float
    """Lower quartile: others are in its way now and then."""
    sent_bytes: float
    congestion_control: str
    samples: int
    """Of which this is made."""

    @property
    def bits_per_s(self) -> float:
        """While it sent."""
        return 8e6 * self.sent_bytes / self.sending_us


def measured(samples: Sequence[IterationSample]) -> Measured | None:
    """What the latest samples agree on; None: they do not, or are too few.

    Others on a link change how long a job sends, never how much, and hardly how long it computes. One iteration may be
    much longer, so computing time and bytes are medians.

    Args:
        samples: of one attempt, seen at the same worker, the latest last.
    """
    latest = [sample for sample in samples[-KEPT:] if is_plausible(sample)]
    size = median(sample.sent_bytes for sample in latest[-2 * AGREEING + 1 :]) if latest else 0.0
    alike = [sample for sample in latest if abs(sample.sent_bytes - size) <= BYTES_WITHIN * size]
    if len(alike) < AGREEING:
        return None
    return Measured(
        median(sample.period_us - sample.sending_us - sample.frozen_us for sample in alike),
        sorted(sample.sending_us * size / sample.sent_bytes for sample in alike)[len(alike) // 4],
        size,
        alike[-1].congestion_control,
        len(alike),
    )


def is_plausible(sample: IterationSample) -> bool:
    """Whether a job can have had such an iteration."""
    busy_us = sample.sending_us + sample.frozen_us
    return 0 < sample.sending_us <= sample.period_us <= 1_000 * MAX_PERIOD_MS >= busy_us and sample.sent_bytes > 0


def profiled(found: Measured, bits_per_s: float, job: str, attempt: int) -> TrafficProfile:
    """The profile of a job that computes and then sends at this rate."""
    sending_ms = max(1, round(8_000 * found.sent_bytes / bits_per_s))
    period_ms = min(max(sending_ms, round(max(0.0, found.computing_us) / 1_000) + sending_ms), MAX_PERIOD_MS)
    end_ms = min(sending_ms, period_ms)
    return TrafficProfile(
        job=job,
        attempt=attempt,
        period_ms=period_ms,
        phases=(TrafficPhase(begin_ms=0, end_ms=end_ms, bits_per_s=round(8_000 * found.sent_bytes / end_ms)),),
        sent_bytes=round(found.sent_bytes),
        congestion_control=found.congestion_control,
    )


def is_other(known: TrafficProfile | None, found: TrafficProfile, changed_by: float = CHANGED_BY) -> bool:
    """Whether a profile is new, or differs by more than this share from the one before."""
    if known is None or known.congestion_control != found.congestion_control:
        return True
    pairs = (
        (known.period_ms, found.period_ms),
        (known.sent_bytes, found.sent_bytes),
        (known.phases[0].bits_per_s, found.phases[0].bits_per_s),
    )
    return any(abs(one - other) > changed_by * max(one, 1) for one, other in pairs)
