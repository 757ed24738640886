"""Drift: limits that were modified externally (`docker update`, systemd, people) are detected, reverted or adopted."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from schemas.limits import RowStatus
from services._host.cgroup_snapshot import Limits, QuotaWriter
from services.agent.containers.container import ContainerLimits, same_memory
from services.agent.containers.container_set import ContainerSet
from services.agent.memory.records import Drift, EventBuffer, mib
from services.agent.memory.reserve import Reserves

MODIFIED: Final = "modified externally"
_PATH_CHARACTERS: Final = 240
"""Of a control group in a sentence, its end: that of a container in a pod has 200."""
_PLAIN: Final = re.compile(r"[\w.:/@+=\[\]\\-]+")
"""Commands and units that need no quotes. A process chooses its command's name: none may pass for more than a name."""


class Change(NamedTuple):
    """Of one limit."""

    what: str
    """From what to what."""
    outcome: str
    """What was done about it."""

    def __str__(self) -> str:
        """A clause."""
        return f"{self.what}, {self.outcome}"


def sentence(quota: Change | None, memory: Change | None, writer: QuotaWriter | None) -> str:
    """What changed, and by which process; empty: nothing did.

    Args:
        quota: of the CPU quota.
        memory: of the memory limit; its writer is not known.
        writer: of the quota; None: not known.
    """
    if quota is None:
        return f"{MODIFIED}: {memory}" if memory is not None else ""
    if memory is None:
        return f"{MODIFIED} {_by(writer)}: {quota}"
    return f"{MODIFIED}: {quota.what} {_by(writer)}, {quota.outcome}; {memory}"


def _by(writer: QuotaWriter | None) -> str:
    if writer is None:
        return "by an unknown process"
    cgroup = writer.cgroup
    if len(cgroup) > _PATH_CHARACTERS:
        cgroup = f"...{cgroup[-_PATH_CHARACTERS:]}"
    return f"by {_named(writer.comm)} (pid {writer.pid}, {_named(cgroup)})"


def _named(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


_REFUSED = "taken over because the kernel refuses the old value"


class DriftDetector:
    """Compares the limits in the kernel with those that were written or last read."""

    def __init__(self, containers: ContainerSet, reserves: Reserves, events: EventBuffer, *, reassert: bool) -> None:
        self._containers = containers
        self._reserves = reserves
        self._reassert = reassert
        self.events = events

    def check(self, key: str) -> None:
        """Read a container's limits back; a limit that was never updated is adopted."""
        known, member = self._containers.limits[key], self._containers.managed[key]
        kernel = member.handle.read_limits()
        if kernel is None:
            return
        ordered = known.quota_ordered or known.limit_ordered
        quota = memory = writer = None
        if kernel.quota_us != known.quota_us:
            writer = self._containers.host.take_quota_writer(member.handle)  # before the quota is reverted
            quota = self._resolve_quota(key, known, kernel.quota_us)
        if kernel.memory_bytes != known.limit_bytes:
            if same_memory(kernel.memory_bytes, known.limit_bytes):
                known.limit_bytes = kernel.memory_bytes
            else:
                memory = self._resolve_memory(key, known, kernel)
        if ordered and (reason := sentence(quota, memory, writer)):
            self.events.add_drift(Drift(member.found, known.quota_us, known.limit_bytes, reason, writer))

    def before_quota_write(self, key: str, ordered_us: int) -> None:
        """Compare before an update overwrites an external modification; costs one read.

        Args:
            key: the container.
            ordered_us: what is about to be written, per period.
        """
        known, member = self._containers.limits[key], self._containers.managed[key]
        kernel_us = member.handle.read_quota()
        if kernel_us is None or kernel_us == known.quota_us:
            return
        writer = self._containers.host.take_quota_writer(member.handle)
        expected_us, known.quota_us = known.quota_us, kernel_us
        reason = sentence(
            _quota_change(expected_us, kernel_us, f"replaced by the limit update of {_us(ordered_us)}"), None, writer
        )
        self.events.add_drift(Drift(member.found, ordered_us, known.limit_bytes, reason, writer))

    def oom_control_was_undone(self, key: str) -> None:
        """The kernel's kill, or memory.high, was changed, and has been put right."""
        known, found = self._containers.limits[key], self._containers.managed[key].found
        reason = f"{MODIFIED}: its memory guard was disabled; it was enabled again"
        self.events.add_drift(Drift(found, known.quota_us, known.limit_bytes, reason))

    def _resolve_quota(self, key: str, known: ContainerLimits, kernel_us: int) -> Change:
        expected_us, known.quota_us = known.quota_us, kernel_us
        outcome = "taken over"
        if self._reassert and known.quota_ordered:
            applied = self._containers.kernel.write_quota(key, expected_us) is RowStatus.APPLIED
            outcome = "put back" if applied else _REFUSED
        return _quota_change(expected_us, kernel_us, outcome)

    def _resolve_memory(self, key: str, known: ContainerLimits, kernel: Limits) -> Change | None:
        expected_bytes, known.limit_bytes = known.limit_bytes, kernel.memory_bytes
        if kernel.memory_bytes > expected_bytes and self._reserves.is_unreconciled(known.app):
            return None  # the watchdog's grant during a gap: its report follows
        outcome = "taken over"
        if self._reassert and known.limit_ordered:
            applied = self._containers.kernel.write_memory(key, expected_bytes) is RowStatus.APPLIED
            outcome = "put back" if applied else _REFUSED
        return Change(f"memory limit {mib(expected_bytes)} became {mib(kernel.memory_bytes)}", outcome)


def _quota_change(expected_us: int, kernel_us: int, outcome: str) -> Change:
    return Change(f"quota {_us(expected_us)} became {_us(kernel_us)}", outcome)


def _us(quota_us: int) -> str:
    return "no limit" if quota_us < 0 else f"{quota_us / 1000:g} ms"
