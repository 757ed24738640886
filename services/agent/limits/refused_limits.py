"""Limits that the kernel refuses, by container: why, what holds instead, and when that is reported. Pure.

A refusal often passes by itself, such as that of a memory limit below what is in use for a moment. So one is reported
when it has lasted for `REPORTED_AFTER_NS`, and again when it has ended: the kernel accepts such a limit, or none was
ordered for `ENDED_AFTER_NS`, which is longer than an allocator waits before it tries again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.limits import REFUSED_RETRY_MAX_S
from schemas.reasons import Resource

REPORTED_AFTER_NS: Final = 1_000_000_000
ENDED_AFTER_NS: Final = int(2.5 * REFUSED_RETRY_MAX_S * 1e9)


class RefusedWrite(NamedTuple):
    """One limit that the kernel refused; us per period, or bytes."""

    ordered: int
    held: int
    """What holds; -1: no limit."""
    reason: str
    """A sentence for people."""
    order: tuple[int, int]
    """Epoch and sequence of the limit update."""


class RefusalChange(NamedTuple):
    """A refusal that lasts, or has ended."""

    container: str
    ended: bool
    reason: str


@dataclass(slots=True)
class _Refusal:
    write: RefusedWrite
    """The latest."""
    since_ns: int
    last_ns: int
    reported: bool = False


class RefusedLimits:
    """Of one node's containers. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[str, Resource], _Refusal] = {}
        self._changes: list[RefusalChange] = []

    def __len__(self) -> int:
        """Limits that are refused now."""
        return len(self._refusals)

    @property
    def held_above(self) -> frozenset[tuple[str, Resource]]:
        """Containers and limits that the kernel holds above what was ordered."""
        return frozenset(key for key, known in self._refusals.items() if known.write.ordered < known.write.held)

    def reason(self, container: str, resource: Resource, order: tuple[int, int]) -> str:
        """Why a limit of this update was refused; empty: it was not."""
        known = self._refusals.get((container, resource))
        return known.write.reason if known is not None and known.write.order == order else ""

    def refused(self, container: str, resource: Resource, write: RefusedWrite, now_ns: int) -> None:
        """The kernel has refused a limit."""
        known = self._refusals.setdefault((container, resource), _Refusal(write, now_ns, now_ns))
        known.write, known.last_ns = write, now_ns
        if not known.reported and now_ns - known.since_ns >= REPORTED_AFTER_NS:
            known.reported = True
            self._changes.append(RefusalChange(container, ended=False, reason=write.reason))

    def accepted(self, container: str, resource: Resource, value: int) -> None:
        """The kernel has accepted a limit: a refusal ends if it was of such a one, beyond what held."""
        known = self._refusals.get((container, resource))
        if known is None:
            return
        ordered, held = known.write.ordered, known.write.held
        if held < 0 or (value < held if ordered < held else value > held):
            self._end(container, resource, "the kernel accepts it again")

    def expire(self, now_ns: int) -> None:
        """End those of which no such limit was ordered for long."""
        for (container, resource), known in list(self._refusals.items()):
            if now_ns - known.last_ns > ENDED_AFTER_NS:
                self._end(container, resource, "it is not ordered any more")

    def forget(self, container: str) -> None:
        """The container is gone."""
        for resource in _RESOURCES:
            self._refusals.pop((container, resource), None)
        self._changes = [change for change in self._changes if change.container != container]

    def take_changes(self) -> list[RefusalChange]:
        """Those since the last call."""
        taken, self._changes = self._changes, []
        return taken

    def _end(self, container: str, resource: Resource, how: str) -> None:
        known = self._refusals.pop((container, resource))
        if known.reported:
            self._changes.append(RefusalChange(container, ended=True, reason=f"{how}, after: {known.write.reason}"))


_RESOURCES: Final[tuple[Resource, ...]] = ("cpu", "memory")
