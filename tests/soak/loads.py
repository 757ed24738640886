"""Containers that burn, grow, shrink, come and go for as long as a soak lasts. Repeatable by its seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer
from tests.support.limit_observer import UNLIMITED

ANSWER_S = 20.0
"""A load that takes longer than that to grow hangs: more than any deadline and any share of the processors explain."""
RATES = (60 * MIB, 200 * MIB, 800 * MIB)
LEAST_MIB = 4


@dataclass(frozen=True)
class Place:
    """Where containers of an application run, one after another, how large they become, and the first one's limit.

    A later one comes without: what it came with would count in the files before it is admitted. So would a quota.
    """

    spec: AppSpec
    root: str
    most_mib: int
    first_limit_bytes: int | None


@dataclass
class Loads:
    """All containers, each driven by a task of its own."""

    cluster: ClusterLab
    chance: random.Random
    containers: dict[LabContainer, tuple[int, int]] = field(default_factory=dict)
    """With the limits that they came with: us and bytes."""
    grown: int = 0
    """Times that one has grown as told."""
    replaced: int = 0
    killed: list[tuple[str, str]] = field(default_factory=list)
    """Containers, with their applications, whose load did not live any more."""
    hung: list[str] = field(default_factory=list)
    _serial: int = 0

    def add(self, place: Place, limit_bytes: int | None = None) -> LabContainer:
        """A new container with the limits that it comes with."""
        self._serial += 1
        container = self.cluster.container(place.spec.name, f"c{self._serial}", None, limit_bytes, place.root)
        self.containers[container] = UNLIMITED, limit_bytes or UNLIMITED
        return container

    async def run(self, places: list[Place]) -> None:
        """Drive one container per place, for ever; cancel to stop."""
        async with asyncio.TaskGroup() as group:
            for place in places:
                group.create_task(self._drive(place, random.Random(self.chance.random())))

    async def _drive(self, place: Place, chance: random.Random) -> None:
        container = self.add(place, place.first_limit_bytes)
        while True:
            container.tell(chance.choice(("burn", "idle", "idle")))
            size_mib = chance.randint(LEAST_MIB, place.most_mib)
            if not await self._grow(container, place, size_mib, chance.choice(RATES)) or chance.random() < 0.04:
                container = await self._replace(container, place)
            await asyncio.sleep(chance.uniform(0.1, 1.5))

    async def _grow(self, container: LabContainer, place: Place, size_mib: int, rate: int) -> bool:
        """False: it is of no use any more."""
        container.tell("idle")
        held = await self.holds(container, size_mib, rate)
        if held:
            self.grown += 1
        elif container.alive:
            self.hung.append(f"{container.key}, told to hold {size_mib} MiB: {container.read()}")
        else:
            self.killed.append((container.key, place.spec.name))
        return held

    @staticmethod
    async def holds(container: LabContainer, size_mib: int, rate: int) -> bool:
        """Whether it grows, or falls, to this size in time."""
        try:
            container.tell(f"hold {size_mib * MIB} {rate}")
            async with asyncio.timeout(ANSWER_S):  # not wait_for: it swallows a cancellation that comes with the answer
                await asyncio.to_thread(container.wait_said, "held")
        except (TimeoutError, AssertionError, BrokenPipeError):
            return False
        return True

    async def _replace(self, container: LabContainer, place: Place) -> LabContainer:
        del self.containers[container]
        await asyncio.to_thread(self.cluster.remove, container)
        self.replaced += 1
        return self.add(place)
