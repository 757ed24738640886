"""The policies that a scheduler can run by, by their names: all that stands in the log is enough to decide. Pure.

Those that Tiresias has as oracles go by the estimate of each job, the job file's or else the advisor's. Those that keep
queues have them in the log: a decision that only moves jobs between them is stored, too, and folded by settling again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.scheduler.core.attained_service import AttainedService
from services.scheduler.core.gittins import Observed
from services.scheduler.core.policies import (
    ArrivalOrder,
    LargestIndex,
    Policy,
    Smallest,
    estimate_text,
    estimated_remaining_s,
    estimated_remaining_slot_s,
    fewest_slots,
)

POLICIES: Final[Mapping[str, Policy]] = {
    "index": LargestIndex(),
    "fifo": ArrivalOrder(),
    "backfill": ArrivalOrder(backfills=True),
    "sjf": Smallest(key=fewest_slots),
    "shortest": Smallest(key=estimated_remaining_s, text=estimate_text),
    "srsf": Smallest(key=estimated_remaining_slot_s, text=estimate_text),
    "dlas": AttainedService(counts_slots=False, exact=True),
    "las": AttainedService(exact=True),
    "gittins": AttainedService(learns=True, exact=True),
}
SYNONYMS: Final[Mapping[str, str]] = {"fjf": "backfill", "shortest-gpu": "srsf", "dlas-gpu": "las"}
"""Tiresias' names of some."""


def live_policy(name: str, observed: Observed) -> Policy:
    """A policy that knows the jobs that have ended.

    Raises:
        KeyError: none has this name.
    """
    return POLICIES[SYNONYMS.get(name, name)].informed(observed)


def remembers(name: str) -> bool:
    """Whether the policy keeps queues; False, too, where there is none of this name, as in a log of another version."""
    policy = POLICIES.get(SYNONYMS.get(name, name))
    return policy is not None and policy.remembers
