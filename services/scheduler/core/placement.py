"""Where the workers of one job go: on as few nodes as possible, within one rack if one has room."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final, Self

from services.scheduler.core.jobs import Job, Node


class Room:
    """Free slots of the nodes that can be used; jobs take them while a decision is made."""

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[Job] = ()) -> None:
        """Args: nodes: of the cluster. jobs: those that hold slots."""
        self._racks: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """By rack and node; nodes without free slots are left out."""
        usable = [node for node in nodes if node.available]
        rack_of = {node.name: node.rack for node in usable}
        free = {node.name: node.slots for node in usable}
        self._devices: Final = {node.name: node.device for node in usable}
        self._equal: Final = frozenset(node.name for node in usable if node.equal_workers)
        """Nodes whose jobs have as many workers on each of their nodes."""
        for job in jobs:
            for name in job.nodes:
                if name in free:
                    free[name] -= job.slots_per_worker
        for name, slots in free.items():
            if slots > 0:
                self._racks[rack_of[name]][name] = slots
        self.slots = sum(slots for rack in self._racks.values() for slots in rack.values())
        """Of all nodes together."""

    def find(self, job: Job) -> tuple[str, ...] | None:
        """The node of each worker, by rank; None: there is no room for all of them.

        In one rack if one has room, on the fewest nodes, and of several ways on those with the fewest free slots, so
        that large gaps stay for large jobs. With as many workers on each where a node asks for that.
        """
        if job.slots > self.slots:
            return None
        found = [(each, rack) for rack in self._racks.values() if (each := self._on_fewest(job, rack)) is not None]
        if not found and len(self._racks) > 1:
            everywhere = self._everywhere()
            found = [(each, everywhere)] if (each := self._on_fewest(job, everywhere)) is not None else []
        return min((_cost(*each) for each in found), default=(0, 0, None))[2]

    def candidates(self, job: Job, most: int, *, by_device: bool = False) -> list[tuple[str, ...]]:
        """Where `find` has it, and then other places, those on the fewest nodes first; empty: there is no room.

        Others are the best of each rack, over racks, and of both without one of the nodes that were found. Before them,
        if devices count: the best with as many workers as possible on each kind of device, and without each kind.
        """
        first = self.find(job)
        if first is None:
            return []
        if most == 1:
            return [first]
        found: dict[tuple[str, ...], tuple[str, ...]] = {}
        for nodes in (first, *(self._by_device(job) if by_device else ()), *self._others(job, first)):
            if self._may_be(nodes):
                found.setdefault(tuple(sorted(nodes)), nodes)
        return list(found.values())[:most]

    def _others(self, job: Job, first: Sequence[str]) -> list[tuple[str, ...]]:
        costs: dict[tuple[str, ...], tuple[int, int, tuple[str, ...]]] = {}
        for left_out in ("", *dict.fromkeys(first)):
            racks = [_without(rack, {left_out}) for rack in self._racks.values()]
            everywhere = {name: slots for rack in racks for name, slots in rack.items()}
            for free in (*racks, everywhere):
                if (nodes := self._on_fewest(job, free)) is not None:
                    costs[nodes] = _cost(nodes, free)
        return sorted(costs, key=costs.__getitem__)

    def _by_device(self, job: Job) -> Iterator[tuple[str, ...]]:
        everywhere = self._everywhere()
        kinds = [
            {name for name in everywhere if self._devices[name] == kind}
            for kind in sorted({self._devices[name] for name in everywhere})
        ]
        for names in kinds:
            mostly = (_mostly_on(job, free, names) for free in (*self._racks.values(), everywhere))
            yield min((nodes for nodes in mostly if nodes), key=lambda nodes: -sum(name in names for name in nodes))
        for names in kinds if len(kinds) > 2 else ():  # of two, that is the other one
            if (nodes := self._on_fewest(job, _without(everywhere, names))) is not None:
                yield nodes

    def _on_fewest(self, job: Job, free: Mapping[str, int]) -> tuple[str, ...] | None:
        """On the fewest of these nodes, or the fewest with as many workers each, if one asks for that."""
        workers, size = job.slots // job.slots_per_worker, job.slots_per_worker
        found = _fewest(workers, size, free)
        if found is None or self._may_be(found):
            return found
        return _evenly(workers, size, free) or _fewest(workers, size, _without(free, self._equal))

    def _may_be(self, nodes: Sequence[str]) -> bool:
        """False: one asks for as many workers on each, and they are not."""
        return self._equal.isdisjoint(nodes) or len(set(Counter(nodes).values())) == 1

    def _everywhere(self) -> dict[str, int]:
        return {name: slots for rack in self._racks.values() for name, slots in rack.items()}

    def has(self, nodes: Iterable[str], slots_per_worker: int) -> bool:
        """Whether workers have room on these nodes."""
        free = self._everywhere()
        return all(free.get(name, 0) >= count * slots_per_worker for name, count in Counter(nodes).items())

    def holds(self, jobs: Collection[Job]) -> bool:
        """Whether there is room for all of these wherever each is placed; if not, there may be all the same."""
        if self._equal:
            return False  # enough slots may be a place for as many workers on each node, or none
        largest = max((job.slots_per_worker for job in jobs), default=1)
        workers = sum(job.slots // job.slots_per_worker for job in jobs)
        return workers <= sum(slots // largest for rack in self._racks.values() for slots in rack.values())

    def copy(self) -> Self:
        """For a trial."""
        other = copy(self)
        other._racks = defaultdict(dict, {rack: dict(free) for rack, free in self._racks.items()})  # noqa: SLF001 - its own
        return other

    def take(self, nodes: Iterable[str], slots_per_worker: int) -> None:
        """Let workers have slots on nodes that `find` named."""
        for name in nodes:
            rack = next(rack for rack in self._racks.values() if name in rack)
            rack[name] -= slots_per_worker
            self.slots -= slots_per_worker
            if rack[name] <= 0:
                del rack[name]


def _without(rack: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    return {each: slots for each, slots in rack.items() if each not in names}


def _cost(nodes: tuple[str, ...], free: Mapping[str, int]) -> tuple[int, int, tuple[str, ...]]:
    used = set(nodes)
    return (len(used), sum(free[name] for name in used), nodes)


def _mostly_on(job: Job, free: Mapping[str, int], names: Collection[str]) -> tuple[str, ...] | None:
    """With as many workers as have room on these of the free nodes, the others on the fewest of the rest."""
    workers, size = job.slots // job.slots_per_worker, job.slots_per_worker
    inside = {name: slots for name, slots in free.items() if name in names}
    first = min(workers, sum(slots // size for slots in inside.values()))
    others = _fewest(workers - first, size, _without(free, names))
    return None if others is None else (*(_fewest(first, size, inside) or ()), *others)


def _fewest(workers: int, slots_per_worker: int, free: Mapping[str, int]) -> tuple[str, ...] | None:
    """On the fewest of these nodes: the largest gaps first, the smallest that is large enough for the last workers."""
    room = {name: count for name, slots in free.items() if (count := slots // slots_per_worker) > 0}
    if sum(room.values()) < workers:
        return None
    placed: list[str] = []
    while len(placed) < workers:
        left = workers - len(placed)
        enough = [(count, name) for name, count in room.items() if count >= left]
        count, name = min(enough) if enough else min((-count, name) for name, count in room.items())
        placed += [name] * min(abs(count), left)
        del room[name]
    return tuple(placed)


def _evenly(workers: int, slots_per_worker: int, free: Mapping[str, int]) -> tuple[str, ...] | None:
    """On the fewest of these nodes with as many workers each, and of those with room on the smallest gaps."""
    room = sorted((slots // slots_per_worker, name) for name, slots in free.items())
    for count in range(1, min(workers, len(room)) + 1):
        each, rest = divmod(workers, count)
        enough = [name for gap, name in room if gap >= each][:count] if not rest else []
        if len(enough) == count:
            return tuple(name for name in enough for _ in range(each))
    return None
