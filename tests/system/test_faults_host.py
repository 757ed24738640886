"""Other hands on a host: second agents, foreign writes, groups that vanish, agents that die, a full state directory."""

from __future__ import annotations

import signal
import time

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.containers import ContainerChange, ContainerEvent
from schemas.subjects import CONTAINER_EVENTS
from tests.support import other_hands
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, MessageLog, poll
from tests.support.deadline import until
from tests.support.limit_observer import UNLIMITED

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NOTICED_S = 1.0
REST_S = 0.5


@pytest_asyncio.fixture(loop_scope="module")
async def events(bare_cluster: ClusterLab):
    """Everything that is told of containers."""
    async with bare_cluster.listen(CONTAINER_EVENTS.pattern(bare_cluster.bus.root)) as log:
        yield log


def told(events: MessageLog, key: str, change: ContainerChange) -> list[ContainerEvent]:
    found = [event for event in events.messages if isinstance(event, ContainerEvent)]
    return [event for event in found if event.container == key and event.change is change]


async def at_rest(container: LabContainer) -> tuple[int, int]:
    """Wait until the container is managed and its limits do not change any more; the limits."""
    seen: tuple[tuple[int, int], float] = ((0, 0), 0.0)

    def rests() -> bool:
        nonlocal seen
        limits = container.read().limits
        if limits != seen[0]:
            seen = limits, time.monotonic()
        return min(limits) > 0 and time.monotonic() > seen[1] + REST_S

    await until(rests, within_s=15, what="limits that stay")
    return seen[0]


async def sums_are_right(cluster: ClusterLab, spec: AppSpec, container: LabContainer) -> bool:
    """The allocator counts what the kernel holds, and all of it."""
    state = await cluster.state(spec.name)
    [row] = state.containers
    quota_us, limit_bytes = container.read().limits
    return (
        (row.quota_us, row.memory_limit_bytes) == (quota_us, limit_bytes)
        and state.memory_held_bytes == limit_bytes + state.memory_reserved_bytes
        and state.memory_held_bytes + state.memory_free_bytes == int(spec.memory_limit)
        and state.cpu_held_us + state.cpu_free_us == spec.cpu_limit_us
    )


HANDS = {
    "a lower quota": (5_000, None),
    "a lower memory limit": (None, 40 * MIB),
    "a higher memory limit": (None, 900 * MIB),
    "daemon-reload": (UNLIMITED, UNLIMITED),
}


@pytest.mark.parametrize("hand", HANDS)
async def test_drift_is_noticed_within_a_second_told_and_put_back(cluster, events, hand, record_figure):
    spec = await cluster.announce(
        AppSpec(name=f"drift-{list(HANDS).index(hand)}", cpu_limit=0.5, memory_limit=256 * MIB)
    )
    container = cluster.container(spec.name, "web")
    before = await at_rest(container)

    quota_us, limit_bytes = HANDS[hand]
    start_s = time.monotonic()
    if quota_us is not None:
        other_hands.write_quota(cluster.tree, container.directory, quota_us)
    if limit_bytes is not None:
        other_hands.write_limit(cluster.tree, container.directory, limit_bytes)
    assert container.read().limits != before

    await until(lambda: told(events, container.key, ContainerChange.DRIFTED), what="told")
    await until(lambda: container.read().limits == before, what="put back")
    noticed_s = time.monotonic() - start_s
    record_figure("noticed and put back within, seconds", round(noticed_s, 3))
    assert noticed_s <= NOTICED_S
    [event] = told(events, container.key, ContainerChange.DRIFTED)
    assert event.reason.count("put back") == (quota_us is not None) + (limit_bytes is not None)
    assert (event.quota_us, event.limit_bytes) == before
    await poll(lambda: sums_are_right(cluster, spec, container), what="sums that are right")
    cluster.remove(container)


async def test_a_guard_that_other_hands_switch_off_is_switched_on_again(cluster, events):
    spec = await cluster.announce(AppSpec(name="unguarded", cpu_limit=0.5, memory_limit=256 * MIB))
    container = cluster.container(spec.name, "web")
    await at_rest(container)
    assert container.guarded

    other_hands.give_the_kernel_its_kill_back(cluster.tree, container.directory)
    await until(lambda: container.guarded, within_s=NOTICED_S, what="guarded again")
    await until(lambda: told(events, container.key, ContainerChange.DRIFTED), what="told")
    [event] = told(events, container.key, ContainerChange.DRIFTED)
    assert "guard of its memory was switched off" in event.reason
    cluster.remove(container)


async def test_a_second_agent_with_the_same_root_is_refused_and_told_who_is_there(cluster):
    [first] = cluster.running("agent")
    second = cluster.launch_agent(node="n2")
    assert await second.exit_code() == 78
    refusal = second.log_path.read_text(encoding="utf-8")
    assert f"node 'n1', pid {first.pid}" in refusal
    assert "stop that agent, or set another TURNBUCKLE_AGENT__MANAGED_ROOT" in refusal
    assert first.running


async def test_a_second_agent_of_the_same_name_is_refused_although_its_root_differs(cluster):
    [first] = cluster.running("agent")
    second = cluster.launch_agent(node="n1", root=f"{cluster.root}-b")
    assert await second.exit_code() == 78
    refusal = second.log_path.read_text(encoding="utf-8")
    assert "node name 'n1' is at work already" in refusal
    assert "set TURNBUCKLE_AGENT__NODE to another name" in refusal
    assert (await first.get("/readyz"))[0] == 200
    third = await cluster.launch_agent(node="n3", root=f"{cluster.root}-b").ready()
    assert await third.signal(signal.SIGTERM) == 0
