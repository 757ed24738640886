"""Drift: other hands write the same files (`docker update`, systemd, people). Noticed, told, put back or taken over."""

from __future__ import annotations

from schemas.limits import RowStatus
from services.agent.containers import Containers, same_memory
from services.agent.limits.external_change import MODIFIED, Change, sentence
from services.agent.limits.update_log import ContainerLimits
from services.agent.memory.records import Drift, Journal, mib
from services.agent.memory.reserve import Reserves
from services.agent.ports import Limits

_REFUSED = "taken over because the kernel refuses the old value"


class DriftWatch:
    """Compares the limits in the kernel with those that were written or last read."""

    def __init__(self, containers: Containers, reserves: Reserves, journal: Journal, *, reassert: bool) -> None:
        self._containers = containers
        self._reserves = reserves
        self._reassert = reassert
        self.journal = journal

    def check(self, key: str) -> None:
        """Read a container's limits back; a limit that was never ordered is taken over as it is."""
        known, member = self._containers.book.containers[key], self._containers.members[key]
        held = member.handle.read_limits()
        if held is None:
            return
        ours = known.quota_ordered or known.limit_ordered
        quota = memory = writer = None
        if held.quota_us != known.quota_us:
            writer = self._containers.host.take_quota_writer(member.handle)  # before the quota is put back
            quota = self._settle_quota(key, known, held.quota_us)
        if not same_memory(held.memory_bytes, known.limit_bytes):
            memory = self._settle_memory(key, known, held)
        else:
            known.limit_bytes = held.memory_bytes
        told = sentence(quota, memory, writer)
        if ours and told:
            self.journal.report(Drift(member.found, known.quota_us, known.limit_bytes, told, writer))

    def before_quota_write(self, key: str, ordered_us: int) -> None:
        """Compare before an order overwrites what somebody else has written since the last look; costs one read.

        Args:
            key: the container.
            ordered_us: what is about to be written, per period.
        """
        known, member = self._containers.book.containers[key], self._containers.members[key]
        held_us = member.handle.read_quota()
        if held_us is None or held_us == known.quota_us:
            return
        writer = self._containers.host.take_quota_writer(member.handle)
        wanted_us, known.quota_us = known.quota_us, held_us
        told = sentence(
            _quota_change(wanted_us, held_us, f"replaced by the limit update of {_us(ordered_us)}"), None, writer
        )
        self.journal.report(Drift(member.found, ordered_us, known.limit_bytes, told, writer))

    def guard_was_undone(self, key: str) -> None:
        """The kernel's kill, or memory.high, was changed, and has been put right."""
        known, found = self._containers.book.containers[key], self._containers.members[key].found
        reason = f"{MODIFIED}: its memory guard was disabled; it was enabled again"
        self.journal.report(Drift(found, known.quota_us, known.limit_bytes, reason))

    def _settle_quota(self, key: str, known: ContainerLimits, held_us: int) -> Change:
        wanted_us, known.quota_us = known.quota_us, held_us
        outcome = "taken over"
        if self._reassert and known.quota_ordered:
            applied = self._containers.write_quota(key, wanted_us) is RowStatus.APPLIED
            outcome = "put back" if applied else _REFUSED
        return _quota_change(wanted_us, held_us, outcome)

    def _settle_memory(self, key: str, known: ContainerLimits, held: Limits) -> Change | None:
        wanted_bytes, known.limit_bytes = known.limit_bytes, held.memory_bytes
        if held.memory_bytes > wanted_bytes and self._reserves.is_doubtful(known.app):
            return None  # the watchdog's grant while we were silent: its report follows
        outcome = "taken over"
        if self._reassert and known.limit_ordered:
            applied = self._containers.write_memory(key, wanted_bytes) is RowStatus.APPLIED
            outcome = "put back" if applied else _REFUSED
        return Change(f"memory limit {mib(wanted_bytes)} became {mib(held.memory_bytes)}", outcome)


def _quota_change(wanted_us: int, held_us: int, outcome: str) -> Change:
    return Change(f"quota {_us(wanted_us)} became {_us(held_us)}", outcome)


def _us(quota_us: int) -> str:
    return "no limit" if quota_us < 0 else f"{quota_us / 1000:g} ms"
