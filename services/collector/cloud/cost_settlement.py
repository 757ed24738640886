"""When a cost in the billing export can be believed: it arrives late, in parts, and is corrected afterwards.

Google gives no guarantee of delay. So a cost counts once it was the same for some looks in a row, the looks lay apart,
and the job ended long enough ago.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

SAME_USD = 1e-6
"""Sums of floating-point numbers differ by the order of adding."""
SMALLEST_USD = -0.005
"""Credits may cancel a cost to the cent; what is further below zero is no cost."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How sure to be."""

    looks: int
    """In a row, with the same cost."""
    apart_s: float
    """Looks that follow sooner do not count."""
    settle_s: float
    """After the job's end, at least."""
    give_up_s: float
    """After the job's end, derive the cost instead."""


@dataclass(frozen=True, slots=True)
class BilledCost:
    """Sum of a job's rows in the billing export, credits added."""

    usd: float
    rows: int
    unconverted_rows: int = 0
    """Rows in a currency of unknown price: without them the sum is too low, so it is no cost."""


class Observation(BaseModel):
    """What the looks at one job's cost have shown so far."""

    model_config = ConfigDict(frozen=True)

    usd: float
    rows: int
    looks: int
    """That counted, in a row, with this cost."""
    last_s: float
    """Unix time of the last one that counted."""


class Settled(StrEnum):
    """What to do with a finished job."""

    WAIT = "wait"
    BILLED = "billed"
    DERIVED = "derived"
    ABSURD = "absurd"
    """Less than nothing: someone has to look at it."""


def observe(
    before: Observation | None, billed: BilledCost | None, now_s: float, patience: Patience
) -> Observation | None:
    """One more look; None: there is no row yet (or no more)."""
    if billed is None or billed.unconverted_rows:
        return None
    if before is None or abs(before.usd - billed.usd) > SAME_USD or before.rows != billed.rows:
        return Observation(usd=billed.usd, rows=billed.rows, looks=1, last_s=now_s)
    if now_s - before.last_s < patience.apart_s:
        return before
    return before.model_copy(update={"looks": before.looks + 1, "last_s": now_s})


def judge(seen: Observation | None, ended_s: float, now_s: float, patience: Patience) -> Settled:
    """Whether a job's cost is settled; times are Unix times in seconds."""
    age_s = now_s - ended_s
    if seen is not None and seen.looks >= patience.looks and age_s >= patience.settle_s:
        return Settled.BILLED if seen.usd >= SMALLEST_USD else Settled.ABSURD
    if seen is None and age_s >= patience.give_up_s:
        return Settled.DERIVED
    return Settled.WAIT
