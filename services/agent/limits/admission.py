"""Admission check: whether a limit update stays within the AppSpec limits of its application.

Pure. The server lets only allocators send updates (docs/security.md); this bounds what a stolen key, or a defect, can
do to a host. Updates of a correct allocator always pass: it counts every container of every node, and the larger of
the old and the new value where it cannot know; here only those of this node count, and only values that were updated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SpecLimit:
    """An application's limits by its AppSpec."""

    cpu_us: int
    """Per period, over all its containers."""
    memory_bytes: int


class KnownLimits(Protocol):
    """A container's limits as the update log has them."""

    app: str
    quota_us: int
    limit_bytes: int
    quota_ordered: bool
    limit_ordered: bool


@dataclass(slots=True)
class _Committed:
    """What an application's containers on this node hold, and its reserve."""

    cpu_us: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class SpecLimits:
    """AppSpec limits by application. None: there is no AppSpec, and no update for it is applied."""

    by_app: dict[str, SpecLimit | None] = field(default_factory=dict)

    def admission(self, containers: Mapping[str, KnownLimits], reserve: Callable[[str], tuple[int, int]]) -> Admission:
        """For one update; ``reserve`` returns what an application's reserve here was given, and has used, in bytes."""
        return Admission(self.by_app, containers, reserve)


@dataclass(slots=True)
class Admission:
    """What is left for the rows of one update, one after another."""

    by_app: Mapping[str, SpecLimit | None]
    containers: Mapping[str, KnownLimits]
    reserve: Callable[[str], tuple[int, int]]
    over_limit: set[str] = field(default_factory=set)
    """Applications whose AppSpec limits the update would pass, or that have none."""
    _committed: dict[str, _Committed] | None = None

    def admits(self, container: KnownLimits, quota_us: int, limit_bytes: int) -> bool:
        """Whether a row may be applied; if so, its increase counts for the rows after it. 0: unchanged."""
        limit = self.by_app.get(container.app)
        if limit is None:
            self.over_limit.add(container.app)
            return False
        committed = self._committed_of(container.app)
        cpu_us = max(0, quota_us - _counted(container.quota_us, ordered=container.quota_ordered))
        memory = max(0, limit_bytes - _counted(container.limit_bytes, ordered=container.limit_ordered))
        if (cpu_us and committed.cpu_us + cpu_us > limit.cpu_us) or (
            memory and committed.memory_bytes + memory > limit.memory_bytes
        ):
            self.over_limit.add(container.app)
            return False
        committed.cpu_us += cpu_us
        committed.memory_bytes += memory
        return True

    def admits_reserve(self, app: str, given_bytes: int) -> bool:
        """Whether a node's reserve may be given so much in all; no more than now is always well."""
        more = given_bytes - self.reserve(app)[0]
        limit = self.by_app.get(app)
        if more <= 0 or (limit is not None and self._committed_of(app).memory_bytes + more <= limit.memory_bytes):
            return True
        self.over_limit.add(app)
        return False

    def _committed_of(self, app: str) -> _Committed:
        if self._committed is None:
            self._committed = {}
            for each in self.containers.values():
                committed = self._add(self._committed, each.app)
                committed.cpu_us += _counted(each.quota_us, ordered=each.quota_ordered)
                committed.memory_bytes += _counted(each.limit_bytes, ordered=each.limit_ordered)
        return self._add(self._committed, app)

    def _add(self, committed: dict[str, _Committed], app: str) -> _Committed:
        if app not in committed:
            given_bytes, used_bytes = self.reserve(app)
            committed[app] = _Committed(memory_bytes=given_bytes - used_bytes)
        return committed[app]


def _counted(value: int, *, ordered: bool) -> int:
    """A limit that was never updated does not count, and may be unlimited (-1)."""
    return value if ordered and value > 0 else 0
