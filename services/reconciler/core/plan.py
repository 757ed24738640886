"""The ordered writes that make the kernel hold what it should."""

from __future__ import annotations

from dataclasses import dataclass

from services.reconciler.core.desired import Desired
from services.reconciler.core.operation import Operation
from services.reconciler.core.state import Filter, Snapshot


@dataclass(frozen=True, slots=True)
class Tally:
    """How much of what should be there is there."""

    desired: int
    right: int
    """Filters of ours that are as they should be."""
    own: int
    """Filters of ours, right or not."""
    foreign: int
    in_hw: int
    """Of the right ones."""
    not_in_hw: int


def plan(snapshot: Snapshot, wanted: Desired) -> tuple[Operation, ...]:
    """Writes in order, every prefix of which leaves the kernel no worse; () where nothing differs."""
    raise NotImplementedError


def flush(snapshot: Snapshot, pref: int) -> tuple[Operation, ...]:
    """Deletes of everything of ours: filters, then actions. clsact and static entries stay."""
    raise NotImplementedError


def tally(snapshot: Snapshot, wanted: Desired) -> Tally:
    """Counts for status and audit."""
    raise NotImplementedError


def own_filters(snapshot: Snapshot, pref: int) -> tuple[Filter, ...]:
    """Filters of ours, in order of device, MAC and handle."""
    raise NotImplementedError
