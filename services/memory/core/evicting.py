"""Which slabs a daemon gives up so that its host keeps free memory. Pure.

Free memory is smoothed, so that one short process does not evict. After Infiniswap (Gu et al., NSDI 2017), section 4.3,
whose daemons have to ask owners about activity, because reads by RDMA pass them unseen, and therefore ask E + 5 at
random for E evictions. Here every page passes the daemon, which counts: of all its slabs the least active go (decision
86). An owner can make its slabs look active, by reading pages that it does not need: so activity decides only among
owners that hold more than half of an equal share (decision 105).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

NEWEST_TENTHS: Final = 7
"""Weight of the newest reading of free memory, in tenths; the rest is the reading before it."""


FLOOR_OF_EQUAL_SHARE: Final = 2
"""An owner's floor is an equal share of all that is held, divided by this."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory of a host over two readings, in bytes."""

    newest_bytes: int
    before_bytes: int

    @property
    def smoothed_bytes(self) -> int:
        """What decides."""
        return (NEWEST_TENTHS * self.newest_bytes + (10 - NEWEST_TENTHS) * self.before_bytes) // 10

    def then(self, newest_bytes: int) -> FreeMemory:
        """With a further reading."""
        return FreeMemory(newest_bytes, self.newest_bytes)

    def freed(self, freed_bytes: int) -> FreeMemory:
        """With memory that was just given back: otherwise the older reading would evict once more."""
        return FreeMemory(self.newest_bytes + freed_bytes, self.before_bytes + freed_bytes)


@dataclass(frozen=True, slots=True)
class HeldSlab:
    """A slab that a daemon holds."""

    name: str
    owner: str
    """Host that has taken it, by its name on the bus, which the server checks."""
    slab_bytes: int
    connected: bool
    """An owner's connection is open: pages are in it. Otherwise it was taken and not used yet."""
    pages_per_s: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """Slabs to give up, the first one first, and why."""

    names: tuple[str, ...]
    smoothed_bytes: int
    """Free memory, as it was measured."""
    headroom_bytes: int
    """What has to stay free."""
    missing_bytes: int
    """What stays missing once all of them are gone; above 0 only where the daemon holds nothing else."""


def evict(held: Collection[HeldSlab], free: FreeMemory, headroom_bytes: int) -> Eviction:
    """As few slabs as bring free memory back to the headroom, in the order of `_leaving_order`."""
    missing = headroom_bytes - free.smoothed_bytes
    names = []
    for slab in _leaving_order(held):
        if missing <= 0:
            break
        names.append(slab.name)
        missing -= slab.slab_bytes
    return Eviction(tuple(names), free.smoothed_bytes, headroom_bytes, max(0, missing))


def _leaving_order(held: Collection[HeldSlab]) -> list[HeldSlab]:
    """Slabs without a connection; then the least active ones of owners above their floor; then the rest, likewise.

    What an owner above its floor gives last may take it below. The rest has floors of its own, half as high or less:
    otherwise activity alone would decide there, and slabs that leave first would raise the floor of all.
    """
    holds = Counter[str]()
    for slab in held:
        holds[slab.owner] += slab.slab_bytes
    floor_bytes = holds.total() // (FLOOR_OF_EQUAL_SHARE * max(1, len(holds)))
    first, last = [], []
    for slab in sorted(held, key=lambda slab: (slab.connected, slab.pages_per_s, slab.name)):
        if slab.connected and holds[slab.owner] <= floor_bytes:
            last.append(slab)
        else:
            first.append(slab)
            holds[slab.owner] -= slab.slab_bytes
    return first + (_leaving_order(last) if first else last)


def offered_bytes(free: FreeMemory, headroom_bytes: int) -> int:
    """What a daemon can take on beyond its headroom: of both readings the lower one counts."""
    return max(0, min(free.newest_bytes, free.smoothed_bytes) - headroom_bytes)
