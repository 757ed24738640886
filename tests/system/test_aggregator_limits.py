"""Aggregators of a running service as containers of an application: their quotas are the allocator's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from schemas.aggregations import APPLICATION
from schemas.apps import AppSpec
from schemas.streams import APPS
from services._runtime.bus.api import BusError
from tests.support.cgroup_lab import wait_until
from tests.support.cluster_lab import ClusterLab, poll
from tests.support.limit_observer import read_group
from tests.support.local_aggregators import asked, end, place

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
START_S = 240.0
"""torch takes seconds to import, more on a busy machine."""
CPU_CORES = 0.5
QUOTA_US = 50_000
"""The same, of a period of 100 ms; without the allocator it would have a core."""


def groups(lab: ClusterLab) -> list[str]:
    """Of aggregators, relative to each controller's mount."""
    above = Path(lab.tree.cpu, lab.root, APPLICATION)
    return [f"{lab.root}/{APPLICATION}/{each.name}" for each in above.glob("aggregator-*")] if above.exists() else []


async def test_an_aggregators_quota_is_within_the_announced_limit(cluster: ClusterLab) -> None:
    service = cluster.launch(
        "aggregator",
        AGGREGATOR__MANAGED_ROOT=cluster.root,
        AGGREGATOR__PROCESSES="1",
        AGGREGATOR__CPU_CORES=str(CPU_CORES),
    )

    async def placed() -> bool:
        try:
            await place(cluster.bus, asked(), timeout_s=START_S)
        except BusError:  # it does not lead yet
            return False
        return True

    await poll(placed, within_s=START_S, what="the job placed")
    entry = await cluster.bus.bucket(APPS).get(APPLICATION)
    assert entry is not None
    assert isinstance(entry.message, AppSpec)
    assert (entry.message.mode, entry.message.cpu_limit) == ("enforce", CPU_CORES)
    (directory,) = groups(cluster)

    async def limited() -> bool:
        reading = read_group(cluster.tree, directory)
        assert reading is not None, service.log()[-5:]
        return 0 < reading.quota_us <= QUOTA_US

    await poll(limited, within_s=120, what="the allocator's quota in the kernel")
    state = await cluster.state(APPLICATION)
    assert state.spec == entry.message

    await end(cluster.bus)
    service.send(signal.SIGTERM)
    wait_until(lambda: not service.running and not groups(cluster), what="the service's end, and its group's")
