"""Cost stabilisation: when a cost in the billing export is final. It arrives late, in parts, and is corrected later.

Google guarantees no delay. So a cost is final after several consecutive polls with the same value, a minimum distance
apart, and a minimum age of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

SAME_USD = 1e-6
"""Sums of floating-point numbers differ by the order of adding."""
SMALLEST_USD = -0.005
"""Credits may cancel a cost to the cent; a sum further below zero is invalid."""


@dataclass(frozen=True, slots=True)
class CostStability:
    """Criteria of a final cost."""

    polls: int
    """Consecutive, with the same cost."""
    spacing_s: float
    """Polls that follow sooner do not count."""
    min_age_s: float
    """Since the job's end."""
    timeout_s: float
    """Since the job's end: derive the cost then."""


@dataclass(frozen=True, slots=True)
class BilledCost:
    """Sum of a job's rows in the billing export, credits added."""

    usd: float
    rows: int
    unconverted_rows: int = 0
    """Rows in a currency without a rate: without them the sum is too low, so it is invalid."""


class Observation(BaseModel):
    """Consecutive polls of one job's cost."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True)

    usd: float
    rows: int
    polls: int = Field(alias="looks")
    """Counted consecutive polls with this cost; ``looks`` in the file."""
    last_s: float
    """Unix time of the last counted poll."""


class Settlement(StrEnum):
    """State of a finished job's cost."""

    WAIT = "wait"
    BILLED = "billed"
    DERIVED = "derived"
    NEGATIVE = "negative"
    """Below zero: needs manual inspection."""


def observe(
    before: Observation | None, billed: BilledCost | None, now_s: float, stability: CostStability
) -> Observation | None:
    """Update an observation with a poll; None: there is no row (any more)."""
    if billed is None or billed.unconverted_rows:
        return None
    if before is None or abs(before.usd - billed.usd) > SAME_USD or before.rows != billed.rows:
        return Observation(usd=billed.usd, rows=billed.rows, polls=1, last_s=now_s)
    if now_s - before.last_s < stability.spacing_s:
        return before
    return before.model_copy(update={"polls": before.polls + 1, "last_s": now_s})


def settlement_of(seen: Observation | None, ended_s: float, now_s: float, stability: CostStability) -> Settlement:
    """State of a job's cost; times are Unix times in seconds."""
    age_s = now_s - ended_s
    if seen is not None and seen.polls >= stability.polls and age_s >= stability.min_age_s:
        return Settlement.BILLED if seen.usd >= SMALLEST_USD else Settlement.NEGATIVE
    if seen is None and age_s >= stability.timeout_s:
        return Settlement.DERIVED
    return Settlement.WAIT
