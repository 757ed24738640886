"""How much memory the containers of one node may be promised: by how much limits and reserves may still rise, and why.

Replicas of the allocator own applications; only its agent sees all of a node (decision 36). A promise is what an agent
has set: the limit of a container that it enforces, and a reserve. All else counts with what it uses: limits of
containers that are only observed promise nothing, and mostly add up to more than there is (decision 114). Two
bounds hold for what raises a limit or a reserve:

    committed = limits of enforced containers + reserves + use of the other containers <= allocatable
    unused    = sum of (limit - use) of enforced containers + reserves                 <= MemAvailable - min_available

- the budget: *allocatable* is the node's capacity less what is reserved for the system (the terms are Kubernetes');
- MemAvailable shows what unmanaged processes and the kernel use. What is promised and not used yet may be taken at any
  time, so it must fit what is available, above a threshold (the kubelet evicts at the same). A grant out of a reserve
  turns it into a limit: then the same holds without what stays in reserves, which the agent may still keep.

While the others grow by less than min_available from one look to the next, enforced containers can use all that they
are promised without the kernel's global out-of-memory killer. Use is without page cache that the kernel can drop.

`NodeBudget` has no clock, bus or files of its own: it is given the containers. All values are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from schemas.oom import MemoryReply, OomCause, OomKind
from services._host.cgroup_snapshot import UNLIMITED
from services.agent.containers.container_set import ContainerSet
from services.agent.memory.growth import MIB, PAGE_BYTES
from services.agent.memory.policy import DECREASE_MARGIN_BYTES
from services.agent.memory.records import EventBuffer, MemoryEvent, RequestOutcome, mib
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
    """Of MemAvailable, never promised: nothing is raised or granted while it is below."""

    @property
    def allocatable_bytes(self) -> int:
        """The most that may be committed."""
        return max(self.capacity_bytes - self.reserved_bytes, 0)


def default_reserved_bytes(capacity_bytes: int) -> int:
    """The default of what is reserved for the system: max(256 MiB, 5 %), at most half."""
    default_bytes = max(DEFAULT_RESERVED_BYTES, capacity_bytes // DEFAULT_RESERVED_SHARE)
    return min(default_bytes, capacity_bytes // MOST_RESERVED_SHARE)


def least_limit_bytes(usage_bytes: int) -> int:
    """The least limit that is safe for a container that uses so much; whole pages."""
    return -(-(max(usage_bytes, 0) + DECREASE_MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES


class Promises(NamedTuple):
    """What a node's memory is promised to."""

    committed_bytes: int
    """Limits of enforced containers, reserves, and what the other containers use."""
    reserved_bytes: int
    """Of it, in reserves."""
    unused_bytes: int
    """Of the limits, what is not used yet."""


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
            return (
                f"memory of node {node} runs out: MemAvailable is {measured}, and {threshold} are kept free or "
                "promised already"
            )
        return (
            f"the memory budget of node {node} is used up: limits, reserves and what unenforced containers use add up "
            f"to {measured} of {threshold} that are allocatable"
        )


class Headroom(NamedTuple):
    """By how much limits and reserves may rise, and what stands in the way of more."""

    left_bytes: int
    """>= 0; 0 also where the node is above its budget already: then nothing is lowered for it, but nothing raised."""
    refusal: Refusal


def available_headroom(budget: MemoryBudget, promised: int, available_bytes: int) -> Headroom:
    """By how much promises may grow for what the machine has left.

    Args:
        budget: of the node.
        promised: bytes that may be taken without a further raise.
        available_bytes: MemAvailable.
    """
    kept_bytes = budget.min_available_bytes + promised
    return Headroom(max(available_bytes - kept_bytes, 0), Refusal("memory_available", available_bytes, kept_bytes))


def headroom(budget: MemoryBudget, committed: int, available_bytes: int | None, unused: int = 0) -> Headroom:
    """By how much limits and reserves may rise now: the lesser of both bounds. Bytes.

    Args:
        budget: of the node.
        committed: limits of enforced containers, reserves, and what the other containers use.
        available_bytes: MemAvailable; None: not known, so only the budget counts.
        unused: of these limits and reserves, what is not used yet.
    """
    allocatable = budget.allocatable_bytes
    left = Headroom(max(allocatable - committed, 0), Refusal("node_budget", committed, allocatable))
    if available_bytes is None:
        return left
    of_machine = available_headroom(budget, unused, available_bytes)
    return of_machine if of_machine.left_bytes < left.left_bytes else left


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

    def take(self, wanted_bytes: int, *, whole: bool = False) -> int:
        """Up to so much of what is left; ``whole``: all of it or nothing."""
        if self._headroom is None:
            self._headroom = self._budget.headroom()
        if self._headroom is None:
            return wanted_bytes
        got = min(wanted_bytes, self._headroom.left_bytes - self._taken_bytes)
        got = 0 if whole and got < wanted_bytes else got
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
        self._sampled_available: int | None = None
        self.rejections = 0
        """Increases that there was not enough headroom for."""
        if budget is not None:
            reserves.grantable_bytes = self._grantable_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of the node, as its settings have it; None: no bound."""
        return None if self._budget is None else self._budget.capacity_bytes

    @property
    def allocatable_bytes(self) -> int | None:
        """The most that may be committed; None: no bound."""
        return None if self._budget is None else self._budget.allocatable_bytes

    def take_sample(self) -> None:
        """The usage of all containers was read."""
        self._sampled_available = self._containers.host.read_available() if self._budget is not None else None

    def _available_bytes(self) -> int | None:
        """MemAvailable, no more than at the last sample: what containers have freed since, they may take again.

        None: not known.
        """
        now_bytes = self._containers.host.read_available()
        if now_bytes is None or self._sampled_available is None:
            return now_bytes
        return min(now_bytes, self._sampled_available)

    def committed_bytes(self) -> int:
        """Limits of enforced containers, reserves, and what the other containers use."""
        return self.promises().committed_bytes

    def promises(self) -> Promises:
        """What was promised so far.

        Before its first sample, which comes within a period, a container counts as using all of its limit, or nothing:
        a new agent finds tasks that wait at limits which are used up.
        """
        reserved, unused = self.reserves.left_bytes, 0
        committed, used = reserved, self._containers.samples.memory_in_use()
        for key, limits in self._containers.limits.items():
            limit_bytes = limits.limit_bytes
            if limits.limit_promised and limit_bytes >= 0:
                committed += limit_bytes
                unused += max(limit_bytes - used.get(key, limit_bytes), 0)
            else:
                committed += least_limit_bytes(used.get(key, 0))
        return Promises(committed, reserved, unused)

    def headroom(self) -> Headroom | None:
        """By how much limits and reserves may rise now; None: no bound."""
        if self._budget is None:
            return None
        promises, available_bytes = self.promises(), self._available_bytes()
        unused = promises.unused_bytes + promises.reserved_bytes
        return headroom(self._budget, promises.committed_bytes, available_bytes, unused)

    @property
    def headroom_bytes(self) -> int:
        """As messages carry it; -1: no bound."""
        room = self.headroom()
        return -1 if room is None else room.left_bytes

    def _grantable_bytes(self) -> int | None:
        """The most that may be granted out of reserves now, which are committed already; None: no bound."""
        available_bytes = self._available_bytes()
        if self._budget is None or available_bytes is None:
            return None
        return available_headroom(self._budget, self.promises().unused_bytes, available_bytes).left_bytes

    def grant_refusal(self) -> Refusal | None:
        """Why nothing may be granted out of reserves now, whatever others leave; None: something may, or might soon."""
        available_bytes = self._containers.host.read_available()
        if self._budget is None or available_bytes is None:
            return None
        of_machine = available_headroom(self._budget, 0, available_bytes)
        return None if of_machine.left_bytes else of_machine.refusal

    def outcome(self, reply: MemoryReply, wanted_bytes: int) -> RequestOutcome:
        """An allocator's answer; where this node lacks the headroom, that is the reason, with figures.

        Where the allocator knew of no headroom, and there is some now, it is asked again before anything is killed.
        """
        room = self.headroom() if reply.denial else None
        if room is not None and reply.node_is_full and room.left_bytes >= MIB:
            again = f"its node has {_mib(room.left_bytes)} again; {reply.denial}"
            return RequestOutcome(timeout=again if room.left_bytes >= wanted_bytes else f"{self._full(room)}; {again}")
        if room is not None and room.left_bytes < wanted_bytes:
            return RequestOutcome(denial=f"{self._full(room)}; {reply.denial}")
        return RequestOutcome(denial=reply.denial)

    def _full(self, room: Headroom) -> str:
        return room.refusal.sentence(self._containers.node)

    def begin(self) -> UpdateHeadroom:
        """Before an update is applied."""
        return UpdateHeadroom(self)

    def admit(self, key: str, limit_bytes: int, room: UpdateHeadroom) -> Admitted:
        """As much of a new memory limit as the node has headroom for; a decrease is admitted as it is.

        A container without a limit is given one in any case, if only just above its usage: without one it may take all.
        One that came with a limit keeps it as long as the node cannot promise all of the first that is ordered: what it
        was never promised is not taken from it.
        """
        limits = self._containers.limits[key]
        held_bytes, counted = limits.limit_bytes, self.counted_bytes(key)
        if limit_bytes <= counted:
            return Admitted(limit_bytes, None)
        is_own = held_bytes != UNLIMITED and not limits.limit_promised
        got = room.take(limit_bytes - counted, whole=is_own)
        if got == limit_bytes - counted:
            return Admitted(limit_bytes, None)
        if is_own:
            return Admitted(0, room.refusal)
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

    def _usage(self, key: str) -> int:
        """As read last; 0 before the first sample."""
        samples = self._containers.samples
        row = samples.row_of(key)
        return 0 if row is None else int(samples.memory_bytes[row])

    def counted_bytes(self, key: str) -> int:
        """What one container counts for: its limit if an agent has set it, else its use and the least room above it.

        So a container without a limit can always be given its first one, on a full node too, and the sum does not rise.
        """
        limits, samples = self._containers.limits[key], self._containers.samples
        if limits.limit_promised and limits.limit_bytes >= 0:
            return limits.limit_bytes
        row = samples.row_of(key)
        return least_limit_bytes(0 if row is None else int(samples.memory_bytes[row] - samples.reclaimable_bytes[row]))
