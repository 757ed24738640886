"""Quotas of busy containers that somebody else writes: each is told, though the next order overwrites it at once."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.containers import ContainerChange, ContainerEvent
from schemas.subjects import CONTAINER_EVENTS
from services._host.cgroupfs import paths_of_pid
from services._runtime.bus.api import RequestRefusedError
from tests.support import other_hands
from tests.support.cluster_lab import MIB, ClusterLab, MessageLog, poll
from tests.support.deadline import until
from tests.support.docker_lab import DockerLab
from tests.support.limit_observer import UNLIMITED

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
APP = f"fought{os.getpid()}"
SPEC = AppSpec(name=APP, cpu_limit=0.8, memory_limit=512 * MIB)
WRITES = 15
BUSY = "while :; do timeout 0.3 sh -c 'while :; do :; done'; sleep 0.2; done"
"""Its quota is raised and cut all the time."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def events(bare_cluster: ClusterLab) -> AsyncIterator[MessageLog]:
    await bare_cluster.launch_allocator().ready()
    await bare_cluster.launch_agent(docker="auto").ready()
    await bare_cluster.announce(SPEC)
    async with bare_cluster.listen(CONTAINER_EVENTS.pattern(bare_cluster.bus.root, app=APP)) as log:
        yield log


def quota_drifts(events: MessageLog, key: str) -> list[ContainerEvent]:
    """A container's DRIFTED events that tell of its quota."""
    return [
        event
        for event in events.messages
        if isinstance(event, ContainerEvent)
        and event.change is ContainerChange.DRIFTED
        and event.container == key
        and "quota" in event.reason
    ]


async def each_is_told(events: MessageLog, key: str, write: Callable[[int], None]) -> None:
    """Write one quota after the other; every one of them is told before the next."""
    quotas = itertools.cycle((29_517, UNLIMITED, 3_517))
    for number, quota_us in zip(range(WRITES), quotas, strict=False):
        await asyncio.to_thread(write, quota_us)
        await until(
            lambda number=number: len(quota_drifts(events, key)) > number, within_s=60, what=f"write {number + 1} told"
        )
    told = quota_drifts(events, key)
    assert len(told) == WRITES
    for event in told:  # by whom, where this kernel lets that program be loaded
        by = event.writer.comm if event.writer is not None else "an unknown process"
        assert event.reason.startswith(f"modified externally by {by}"), event.reason
        assert ": quota " in event.reason


async def managed(cluster: ClusterLab, key_end: str) -> str:
    """Key of the container once it has its limits."""

    async def find() -> str:
        try:
            rows = (await cluster.state(APP)).containers
        except RequestRefusedError:  # no owner yet
            return ""
        return next((row.container for row in rows if row.container.endswith(key_end) and row.quota_us > 0), "")

    return str(await poll(find, within_s=60, what="a managed container"))


async def test_in_a_busy_container_of_docker(bare_cluster: ClusterLab, events: MessageLog) -> None:
    """By `docker update` and by hand in turns."""
    engine = DockerLab()
    try:
        container_id = engine.run("sh", "-c", BUSY, name="fought", labels={"turnbuckle.app": APP})
        key = await managed(bare_cluster, container_id[:12])
        pid = engine.client.inspect_container(container_id)["State"]["Pid"]
        path = paths_of_pid(bare_cluster.layout, pid)["cpu"]
        assert path is not None
        directory = path.removeprefix(f"{bare_cluster.tree.cpu}/")

        def write(quota_us: int) -> None:
            if quota_us == UNLIMITED:
                other_hands.write_quota(bare_cluster.tree, directory, quota_us)
            else:
                engine.client.update_container(container_id, cpu_quota=quota_us, cpu_period=100_000)

        await each_is_told(events, key, write)
    finally:
        engine.close()
