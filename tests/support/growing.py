"""Guarded containers of a small cluster that grow when told to."""

from __future__ import annotations

import asyncio
from typing import Final

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer
from tests.support.deadline import until
from tests.support.invariant_rules import reserve_left

RATE: Final = 400 * MIB
QUICK_RECLAIM: Final = {"ALLOCATOR__RECLAIM_EVERY_S": "1"}
"""For an allocator: a container's limit soon lies just above what it uses."""


async def guarded_container(
    cluster: ClusterLab, name: str, sigma: float, memory_limit: int = 512 * MIB
) -> tuple[AppSpec, LabContainer]:
    """The only container of an application that withholds this share for reserves; reclaimed, its reserve there."""
    spec = await cluster.announce(AppSpec(name=name, cpu_limit=0.5, memory_limit=memory_limit, sigma=sigma))
    async with cluster.batches(name) as log:
        container = cluster.container(name, "web")
        await until(lambda: container.guarded and 0 < container.limit_bytes < 100 * MIB, within_s=60, what="reclaimed")
        await until(
            lambda: any(reserve_left(batch) >= 0.8 * sigma * memory_limit for batch in log.messages[-1:]),
            within_s=60,
            what="its reserve",
        )
    return spec, container


def grow(container: LabContainer, size_mib: int, rate: float = RATE) -> None:
    """Begin to grow, or fall, to so much."""
    container.tell(f"hold {size_mib * MIB} {rate}")


async def grown(container: LabContainer, within_s: float = 60.0) -> None:
    """Wait until it holds what it was told to; fails if it was killed."""
    await asyncio.wait_for(asyncio.to_thread(container.wait_said, "held"), within_s)
