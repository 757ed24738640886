"""Whether a limit order stays within what was announced for its application: a second look at what an allocator wants.

Pure. The server lets nobody but allocators order (docs/security.md); this bounds what a stolen key, or a defect, can do
to a host. What an honest allocator orders always passes: it counts every container of every node, and at the larger of
the old and the new value where it cannot know; here only those of this node count, and only values that were ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Bound:
    """An application's announced limits."""

    cpu_us: int
    """Per period, over all its containers."""
    memory_bytes: int


class Limited(Protocol):
    """A container's limits as the order book knows them."""

    app: str
    quota_us: int
    limit_bytes: int
    quota_ordered: bool
    limit_ordered: bool


@dataclass(slots=True)
class _Held:
    """What an application's containers on this node hold, and its reserve."""

    cpu_us: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Bounds:
    """Announced limits by application. None: it is not announced, and no order for it is carried out."""

    known: dict[str, Bound | None] = field(default_factory=dict)

    def room(self, containers: Mapping[str, Limited], reserve: Callable[[str], tuple[int, int]]) -> Room:
        """For one order; ``reserve`` tells what an application's reserve here was given, and has used, in bytes."""
        return Room(self.known, containers, reserve)


@dataclass(slots=True)
class Room:
    """What is left for the rows of one order, one after another."""

    known: Mapping[str, Bound | None]
    containers: Mapping[str, Limited]
    reserve: Callable[[str], tuple[int, int]]
    beyond: set[str] = field(default_factory=set)
    """Applications whose announced limits the order would pass, or that are not announced."""
    _held: dict[str, _Held] | None = None

    def admits(self, container: Limited, quota_us: int, limit_bytes: int) -> bool:
        """Whether a row may be carried out; if so, what it raises counts for the rows after it. 0: left alone."""
        bound = self.known.get(container.app)
        if bound is None:
            self.beyond.add(container.app)
            return False
        held = self._of(container.app)
        cpu_us = max(0, quota_us - _counted(container.quota_us, ordered=container.quota_ordered))
        memory = max(0, limit_bytes - _counted(container.limit_bytes, ordered=container.limit_ordered))
        if (cpu_us and held.cpu_us + cpu_us > bound.cpu_us) or (
            memory and held.memory_bytes + memory > bound.memory_bytes
        ):
            self.beyond.add(container.app)
            return False
        held.cpu_us += cpu_us
        held.memory_bytes += memory
        return True

    def admits_reserve(self, app: str, given_bytes: int) -> bool:
        """Whether a node's reserve may be given so much in all; no more than now is always well."""
        more = given_bytes - self.reserve(app)[0]
        bound = self.known.get(app)
        if more <= 0 or (bound is not None and self._of(app).memory_bytes + more <= bound.memory_bytes):
            return True
        self.beyond.add(app)
        return False

    def _of(self, app: str) -> _Held:
        if self._held is None:
            self._held = {}
            for each in self.containers.values():
                held = self._begin(self._held, each.app)
                held.cpu_us += _counted(each.quota_us, ordered=each.quota_ordered)
                held.memory_bytes += _counted(each.limit_bytes, ordered=each.limit_ordered)
        return self._begin(self._held, app)

    def _begin(self, held: dict[str, _Held], app: str) -> _Held:
        if app not in held:
            given_bytes, used_bytes = self.reserve(app)
            held[app] = _Held(memory_bytes=given_bytes - used_bytes)
        return held[app]


def _counted(value: int, *, ordered: bool) -> int:
    """What a container came with is not ours, and may be unlimited (-1)."""
    return value if ordered and value > 0 else 0
