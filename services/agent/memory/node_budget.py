"""How much memory the containers of one node may be promised: by how much limits and reserves may still rise, and why.

Replicas of the allocator own applications; only its agent sees all of a node (decision 36). Two signals:

- the budget: memory limits and reserves of all managed containers add up to at most the node's *allocatable* memory,
  that is its capacity less what is reserved for the system (the terms are Kubernetes');
- MemAvailable: what is promised is one thing, what the machine has left is another. Below a threshold (the kubelet
  evicts at the same) nothing is raised, and nothing is granted out of reserves, whatever the budget leaves.

Pure: `NodeBudget` is given the control files. All values are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemas.oom import OomCause, OomKind
from services._host.cgroup_snapshot import MEMORY_COLUMN, UNLIMITED
from services.agent.containers import ContainerSet
from services.agent.memory.growth import MIB, PAGE_BYTES
from services.agent.memory.policy import DECREASE_MARGIN_BYTES
from services.agent.memory.records import EventBuffer, MemoryEvent, mib
from services.agent.memory.reserve import Reserves

DEFAULT_RESERVED_BYTES: Final = 256 * MIB
DEFAULT_RESERVED_SHARE: Final = 20
"""A twentieth (5 %) of the capacity is reserved for the system, and `DEFAULT_RESERVED_BYTES` at least."""
MOST_RESERVED_SHARE: Final = 2
"""... but by default never more than half: a machine of 256 MiB can still be used."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A node's memory, and what is not for containers."""

    capacity_bytes: int
    reserved_bytes: int
    min_available_bytes: int
    """Nothing is raised or granted while MemAvailable is below."""

    @property
    def allocatable_bytes(self) -> int:
        """The most that limits and reserves may add up to."""
        return max(self.capacity_bytes - self.reserved_bytes, 0)


def default_reserved_bytes(capacity_bytes: int) -> int:
    """The default of what is reserved for the system: max(256 MiB, 5 %), at most half."""
    default_bytes = max(DEFAULT_RESERVED_BYTES, capacity_bytes // DEFAULT_RESERVED_SHARE)
    return min(default_bytes, capacity_bytes // MOST_RESERVED_SHARE)


def least_limit_bytes(usage_bytes: int) -> int:
    """The least limit that is safe for a container that uses so much; whole pages."""
    return -(-(max(usage_bytes, 0) + DECREASE_MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES


def counted_bytes(limit_bytes: int, usage_bytes: int) -> int:
    """What one container counts for: its limit; without one, what it uses and the margin that a first limit leaves.

    So a container without a limit can always be given its first one, on a full node too, and the sum does not rise.
    """
    return limit_bytes if limit_bytes >= 0 else least_limit_bytes(usage_bytes)


Signal = Literal["node_budget", "memory_available"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no headroom, with what was measured and its threshold."""

    signal: Signal
    measured_bytes: int
    threshold_bytes: int

    def sentence(self, node: str) -> str:
        """For people."""
        measured, threshold = _mib(self.measured_bytes), _mib(self.threshold_bytes)
        if self.signal == "memory_available":
            return f"memory of node {node} runs out: MemAvailable is {measured}, nothing is raised below {threshold}"
        return (
            f"the memory budget of node {node} is used up: limits and reserves of its containers add up to {measured} "
            f"of {threshold} that are allocatable"
        )


class Headroom(NamedTuple):
    """By how much limits and reserves may rise, and what stands in the way of more."""

    left_bytes: int
    """>= 0; 0 also where the node is above its budget already: then nothing is lowered for it, but nothing raised."""
    refusal: Refusal


def grant_refusal(budget: MemoryBudget, available_bytes: int | None) -> Refusal | None:
    """Why nothing may be granted out of reserves now, or None. They count in the budget already.

    Args:
        budget: of the node.
        available_bytes: MemAvailable; None: not known.
    """
    if available_bytes is None or available_bytes >= budget.min_available_bytes:
        return None
    return Refusal("memory_available", available_bytes, budget.min_available_bytes)


def headroom(budget: MemoryBudget, committed: int, available_bytes: int | None) -> Headroom:
    """By how much limits and reserves may rise now.

    Args:
        budget: of the node.
        committed: what they add up to (`NodeBudget.committed_bytes`).
        available_bytes: MemAvailable; None: not known.
    """
    if (refusal := grant_refusal(budget, available_bytes)) is not None:
        return Headroom(0, refusal)
    allocatable = budget.allocatable_bytes
    return Headroom(max(allocatable - committed, 0), Refusal("node_budget", committed, allocatable))


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


REPORT_INTERVAL_NS: Final = 60_000_000_000
"""A container that is rejected again and again is reported once in this time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of a memory limit that is to be raised."""

    limit_bytes: int
    """What may be written; 0: nothing."""
    refusal: Refusal | None
    """Why it is less than the update asked for."""


class UpdateHeadroom:
    """Headroom for the increases of one update, one after another; decreases are to be written before."""

    def __init__(self, budget: NodeBudget) -> None:
        self._budget = budget
        self._headroom: Headroom | None = None
        self._taken_bytes = 0
        self.refusal: Refusal | None = None
        """The latest."""

    def take(self, wanted_bytes: int) -> int:
        """Up to so much of what is left."""
        if self._headroom is None:
            self._headroom = self._budget.headroom()
        if self._headroom is None:
            return wanted_bytes
        got = min(wanted_bytes, self._headroom.left_bytes - self._taken_bytes)
        self._taken_bytes += got
        if got < wanted_bytes:
            self.refusal = self._headroom.refusal
            self._budget.rejections += 1
        return got


class NodeBudget:
    """Limits its node's memory: an increase passes as far as the node has headroom, a decrease always does."""

    def __init__(
        self,
        budget: MemoryBudget | None,
        containers: ContainerSet,
        reserves: Reserves,
        events: EventBuffer,
    ) -> None:
        """``budget`` None: nothing is refused."""
        self._budget = budget
        self._containers = containers
        self.reserves = reserves
        self._events = events
        self._reported_ns: dict[str, int] = {}
        self.rejections = 0
        """Increases that there was not enough headroom for."""
        if budget is not None:
            reserves.may_spend = lambda: self.grant_refusal() is None

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of the node, as its settings have it; None: no bound."""
        return None if self._budget is None else self._budget.capacity_bytes

    @property
    def allocatable_bytes(self) -> int | None:
        """The most that limits and reserves may add up to; None: no bound."""
        return None if self._budget is None else self._budget.allocatable_bytes

    def committed_bytes(self) -> int:
        """What limits and reserves add up to, of all managed containers."""
        committed = self.reserves.left_bytes
        # Summed up with every sample and limit update: containers that have a limit, mostly all, cost no call.
        for key, limits in self._containers.limits.items():
            limit_bytes = limits.limit_bytes
            committed += limit_bytes if limit_bytes >= 0 else counted_bytes(limit_bytes, self._usage(key))
        return committed

    def headroom(self) -> Headroom | None:
        """By how much limits and reserves may rise now; None: no bound."""
        if self._budget is None:
            return None
        return headroom(self._budget, self.committed_bytes(), self._containers.host.read_available())

    @property
    def headroom_bytes(self) -> int:
        """As messages carry it; -1: no bound."""
        room = self.headroom()
        return -1 if room is None else room.left_bytes

    def grant_refusal(self) -> Refusal | None:
        """Why nothing may be granted out of reserves now, or None."""
        if self._budget is None:
            return None
        return grant_refusal(self._budget, self._containers.host.read_available())

    def explain_refusal(self, refusal: str, wanted_bytes: int) -> str:
        """An allocator's refusal of so much; where this node lacks the headroom, that is the reason, with figures."""
        room = self.headroom() if refusal else None
        if room is None or room.left_bytes >= wanted_bytes:
            return refusal
        return f"{room.refusal.sentence(self._containers.node)}; {refusal}"

    def begin(self) -> UpdateHeadroom:
        """Before an update is applied."""
        return UpdateHeadroom(self)

    def admit(self, key: str, limit_bytes: int, room: UpdateHeadroom) -> Admitted:
        """As much of a new memory limit as the node has headroom for; a decrease is admitted as it is.

        A container without a limit is given one in any case, if only just above its usage: without one it may take all.
        """
        held_bytes = self._containers.limits[key].limit_bytes
        counted = counted_bytes(held_bytes, self._counted_usage(key))
        if limit_bytes <= counted:
            return Admitted(limit_bytes, None)
        got = room.take(limit_bytes - counted)
        if got == limit_bytes - counted:
            return Admitted(limit_bytes, None)
        partly = (counted + got) // PAGE_BYTES * PAGE_BYTES
        if held_bytes == UNLIMITED:
            state = self._containers.managed[key].handle.read_memory()
            partly = max(partly, least_limit_bytes(state.usage_bytes if state is not None else 0))
            return Admitted(min(partly, limit_bytes), room.refusal)
        return Admitted(partly if partly > held_bytes else 0, room.refusal)

    def report_rejection(self, key: str, ordered_bytes: int, before_bytes: int, refusal: Refusal, now_ns: int) -> None:
        """Report that an increase was rejected, in part at least; once in `REPORT_INTERVAL_NS` per container."""
        reported_ns = self._reported_ns.get(key)
        if reported_ns is not None and now_ns - reported_ns < REPORT_INTERVAL_NS:
            return
        self._reported_ns[key] = now_ns
        limits = self._containers.limits[key]
        got = "" if limits.limit_bytes == before_bytes else f", it got {mib(limits.limit_bytes)}"
        sentence = refusal.sentence(self._containers.node)
        self._events.add(
            MemoryEvent(
                kind=OomKind.GRANT_DENIED,
                cause=OomCause.NODE,
                key=key,
                app=limits.app,
                usage_bytes=self._usage(key),
                limit_before_bytes=before_bytes,
                limit_after_bytes=limits.limit_bytes,
                reserve_bytes=self.reserves.left_of(limits.app),
                reason=f"{sentence}; the limit update was {mib(ordered_bytes)}{got}",
            )
        )

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._reported_ns.pop(key, None)

    def _counted_usage(self, key: str) -> int:
        """0 for those that have a limit: that is what they count for."""
        return 0 if self._containers.limits[key].limit_bytes >= 0 else self._usage(key)

    def _usage(self, key: str) -> int:
        """By the newest sample; 0 before the first."""
        samples = self._containers.samples
        row = samples.row_of(key)
        return 0 if row is None else int(samples.counters[row, MEMORY_COLUMN])
