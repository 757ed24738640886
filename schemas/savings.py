"""What limits save: CPU time and memory that applications hold, beside what they would hold without Turnbuckle."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from schemas.apps import Mode
from schemas.message import Count, Message

Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""An integral over time; far above a day of any cluster, whatever its agents report."""
Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Baseline(StrEnum):
    """What an application would hold without Turnbuckle."""

    CONFIGURED = "configured"
    """The sum of the limits that its containers came with."""
    APPLICATION_LIMIT = "application_limit"
    """The limit of its AppSpec, because a container came without one."""


class SavingsPart(Message):
    """Integrals over the covered time of one mode and one choice of baselines."""

    type_name: ClassVar[str] = "turnbuckle.savings.v1.SavingsPart"

    mode: Mode
    cpu_baseline: Baseline
    memory_baseline: Baseline
    covered_s: Amount
    """Time that is counted: every container of the application was known, with its limits."""
    cpu_baseline_core_s: Amount
    """CPU limits without Turnbuckle, in cores, times the time that they held."""
    cpu_held_core_s: Amount
    """The same of the limits that were decided: in force in mode `enforce`, not written in mode `observe`. Baseline
    minus held was saved, or would have been; it may be negative."""
    memory_baseline_gib_s: Amount
    memory_held_gib_s: Amount
    """What is withheld for reserves is held, in both modes."""
    periods: Count
    """CFS periods of its containers."""
    throttled_periods: Count
    """Of these, periods in which the kernel throttled a container: by any limits in force, ours or not."""
    throttled_s: Amount
    """Time throttled, summed over CPUs."""
    excess_periods: Count
    """Mode `observe`: periods in which a container used more than was decided for it, and would have been throttled."""
    excess_core_s: Amount
    """The CPU time above what was decided."""


class Savings(Message):
    """One allocator replica's account of one application and UTC day, from the day's start or its own until now.

    Cumulative: a later message of the same subject replaces the earlier one. Those of other subjects are of other time,
    so the sum over all subjects of an application and day counts no time twice.
    """

    type_name: ClassVar[str] = "turnbuckle.savings.v1.Savings"

    app: str
    day: date
    """UTC."""
    record: str
    """Replica, and a number that it counts up; unique."""
    time_ns: Count
    """When it was published, since the epoch."""
    parts: tuple[SavingsPart, ...]
    """At most one of each mode and choice of baselines."""
    core_hour_price: Price | None = None
    """By the allocator's settings; none: not known."""
    gib_hour_price: Price | None = None
    currency: Annotated[str, Field(max_length=16)] = ""
    """Of both prices, such as ``EUR``."""
