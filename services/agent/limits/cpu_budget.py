"""How many cores the CPU quotas of one node's containers may add up to: by how much they may still rise, and why not.

Processor time is shared, so quotas may add up to more than there is: overcommit is normal, and nothing is refused
where the node's settings name no ratio (decision 62). Where they do, quotas add up to at most ratio x cores: the node's
agent, which alone sees all of them, refuses the rest. Decreases always pass.

A container without a quota counts what it used in the latest sample, and at least the kernel's smallest quota: so it
can be given its first one on a full node too, and the sum does not rise by it.

Pure, but for the control files that `NodeCpuBudget` is given. All values are microseconds per period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.apps import MIN_QUOTA_US, PERIOD_US
from services.agent.containers import ContainerSet

LEAST_RAISE_US: Final = 1_000
"""What is left of a raise is written from here on only: every write of a quota refills the container's bandwidth."""
REPORT_INTERVAL_NS: Final = 60_000_000_000
"""A container that is refused again and again is reported once in this time."""


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """A node's cores, and how many times they may be promised."""

    cores: int
    ratio: float
    """> 0; 1: as many as there are."""

    @property
    def allocatable_us(self) -> int:
        """The most that quotas may add up to."""
        return int(self.cores * self.ratio * PERIOD_US)


def counted_us(quota_us: int, used_us: int) -> int:
    """What one container counts for: its quota; without one (negative), what it used in the latest sample."""
    return quota_us if quota_us >= 0 else max(used_us, MIN_QUOTA_US)


def admitted_us(ordered_us: int, quota_us: int, used_us: int, headroom_us: int) -> int:
    """As much of a new quota as there is headroom for; 0: nothing may be written.

    Args:
        ordered_us: the new quota, > 0.
        quota_us: the present one; negative: none.
        used_us: in the latest sample; counts where there is no quota.
        headroom_us: by how much quotas may rise; negative: they add up to more than the budget already.
    """
    counted = counted_us(quota_us, used_us)
    if ordered_us <= counted + max(headroom_us, 0):
        return ordered_us
    partly = counted + max(headroom_us, 0)
    # Without any quota a container may take all processors: its first one is always written.
    return partly if quota_us < 0 or partly - quota_us >= LEAST_RAISE_US else 0


class Refusal(NamedTuple):
    """A raise that was not carried out, in part at least."""

    container: str
    reason: str
    """A sentence with what was measured, its threshold, what was ordered and what became of it."""


class NodeCpuBudget:
    """Limits the sum of CPU quotas on its node: an increase passes as far as there is headroom."""

    def __init__(self, budget: CpuBudget | None, containers: ContainerSet, *, warns: bool = True) -> None:
        """Begin to count.

        Args:
            budget: None: nothing is refused.
            containers: of the node.
            warns: whether more quota than cores is worth a warning, where nothing is refused.
        """
        self._budget = budget
        self._containers = containers
        self._reported_ns: dict[str, int] = {}
        self._refusals: list[Refusal] = []
        self._committed_us: int | None = None
        """Of the present update, once asked for: it is a sum over all containers."""
        self.warns = warns and budget is None
        self.rejections = 0
        """Increases that there was not enough headroom for."""

    @property
    def allocatable_us(self) -> int | None:
        """The most that quotas may add up to; None: no bound."""
        return None if self._budget is None else self._budget.allocatable_us

    def committed_us(self) -> int:
        """What the quotas of all containers add up to; where there is no budget, those without one count nothing."""
        if self._budget is None:
            return sum(max(limits.quota_us, 0) for limits in self._containers.limits.values())
        return sum(self._counted(key) for key in self._containers.limits)

    def begin(self) -> None:
        """Before an update is applied."""
        self._committed_us = None

    @property
    def headroom_us(self) -> int:
        """By how much they may still rise, as messages carry it; -1: no bound."""
        return -1 if self._budget is None else max(self._budget.allocatable_us - self.committed_us(), 0)

    def admit(self, key: str, ordered_us: int) -> tuple[int, str]:
        """As much of a new quota as there is headroom for (0: write nothing), and why it is less, or nothing.

        Args:
            key: the container.
            ordered_us: the new quota; one that is lower than what the container counts for is admitted as it is.
        """
        if self._budget is None:
            return ordered_us, ""
        committed = self.committed_us() if self._committed_us is None else self._committed_us
        quota_us, used_us = self._containers.limits[key].quota_us, self._used(key)
        admitted = admitted_us(ordered_us, quota_us, used_us, self._budget.allocatable_us - committed)
        self._committed_us = committed + max(admitted - counted_us(quota_us, used_us), 0)
        return admitted, "" if admitted == ordered_us else self._sentence(self._budget, committed)

    def report_rejection(self, key: str, ordered_us: int, sentence: str, now_ns: int) -> None:
        """Count an increase that was rejected, in part at least; report it once in `REPORT_INTERVAL_NS` per container.

        Args:
            key: the container, whose limits are now those that hold.
            ordered_us: what the quota was to be.
            sentence: why, from `admit`.
            now_ns: monotonic.
        """
        self.rejections += 1
        reported_ns = self._reported_ns.get(key)
        if reported_ns is not None and now_ns - reported_ns < REPORT_INTERVAL_NS:
            return
        self._reported_ns[key] = now_ns
        holds = _cores(self._containers.limits[key].quota_us)
        reason = f"{sentence}; the limit update was {_cores(ordered_us)} cores, its limit is {holds} cores"
        self._refusals.append(Refusal(key, reason))

    def take_refusals(self) -> list[Refusal]:
        """Those to be reported since the last call."""
        taken, self._refusals = self._refusals, []
        return taken

    def forget(self, key: str) -> None:
        """The container is gone."""
        self._reported_ns.pop(key, None)

    def _sentence(self, budget: CpuBudget, committed: int) -> str:
        return (
            f"the CPU budget of node {self._containers.node} is used up: CPU limits of its containers add up to "
            f"{_cores(committed)} of {_cores(budget.allocatable_us)} cores ({budget.ratio:g} x {budget.cores})"
        )

    def _counted(self, key: str) -> int:
        quota_us = self._containers.limits[key].quota_us
        return quota_us if quota_us >= 0 else counted_us(quota_us, self._used(key))

    def _used(self, key: str) -> int:
        """By the newest sample; 0 before the first."""
        samples = self._containers.samples
        row = samples.row_of(key)
        return 0 if row is None else int(samples.used_us[row])


def _cores(quota_us: int) -> str:
    return f"{quota_us / PERIOD_US:.2f}"
