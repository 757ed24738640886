"""Other hands on a host: second agents, foreign writes, groups that vanish; and agents that die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.containers import ContainerChange, ContainerEvent
from schemas.subjects import CONTAINER_EVENTS
from tests.support import other_hands
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, MessageLog, ServiceProcess, poll
from tests.support.deadline import until
from tests.support.growing import grow, grown
from tests.support.invariant_checker import watch
from tests.support.limit_observer import UNLIMITED

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
NOTICED_S = 60.0
REST_S = 1.0


@pytest_asyncio.fixture(loop_scope="module")
async def events(bare_cluster: ClusterLab):
    """Everything that is told of containers."""
    async with bare_cluster.listen(CONTAINER_EVENTS.pattern(bare_cluster.bus.root)) as log:
        yield log


def told(events: MessageLog, key: str, change: ContainerChange) -> list[ContainerEvent]:
    found = [event for event in events.messages if isinstance(event, ContainerEvent)]
    return [event for event in found if event.container == key and event.change is change]


async def at_rest(spec: AppSpec, container: LabContainer) -> tuple[int, int]:
    """Wait until the container is managed, reclaimed, and its limits do not change any more; the limits."""
    seen: tuple[tuple[int, int], float] = ((0, 0), 0.0)

    def rests() -> bool:
        nonlocal seen
        reading = container.read()
        if reading.limits != seen[0]:
            seen = reading.limits, time.monotonic()
        reclaimed = reading.limit_bytes <= reading.usage_bytes + spec.delta + MIB  # else it is within five seconds
        return reclaimed and min(reading.limits) > 0 and time.monotonic() > seen[1] + REST_S

    await until(rests, within_s=60, what="limits that stay")
    return seen[0]


async def sums_are_right(cluster: ClusterLab, spec: AppSpec, container: LabContainer) -> bool:
    """The allocator counts what the kernel holds, and all of it."""
    state = await cluster.state(spec.name)
    [row] = state.containers
    quota_us, limit_bytes = container.read().limits
    return (
        (row.quota_us, row.memory_limit_bytes) == (quota_us, limit_bytes)
        and state.memory_committed_bytes == limit_bytes + state.memory_reserved_bytes
        and state.memory_committed_bytes + state.memory_free_bytes == int(spec.memory_limit)
        and state.cpu_committed_us + state.cpu_free_us == spec.cpu_limit_us
    )


def put_back(events: MessageLog, key: str) -> int:
    """How many values were; one event may tell of two."""
    return sum(event.reason.count("put back") for event in told(events, key, ContainerChange.DRIFTED))


async def test_drift_is_noticed_within_a_second_told_and_put_back(cluster, events, record_figure):
    """Of both limits at once, as by systemd's daemon-reload."""
    spec = await cluster.announce(AppSpec(name="drift", cpu_limit=0.5, memory_limit=256 * MIB))
    container = cluster.container(spec.name, "web")
    before = await at_rest(spec, container)

    start_s = time.monotonic()
    other_hands.write_quota(cluster.tree, container.directory, UNLIMITED)
    other_hands.write_limit(cluster.tree, container.directory, UNLIMITED)

    await until(lambda: put_back(events, container.key) >= 2, what="told")
    await until(lambda: container.read().limits == before, what="put back")
    noticed_s = time.monotonic() - start_s
    record_figure("noticed and put back within, seconds", round(noticed_s, 3))
    assert noticed_s <= NOTICED_S
    assert put_back(events, container.key) == 2
    last = told(events, container.key, ContainerChange.DRIFTED)[-1]
    assert (last.quota_us, last.limit_bytes) == before
    await poll(lambda: sums_are_right(cluster, spec, container), what="sums that are right")
    cluster.remove(container)


async def test_a_guard_that_other_hands_switch_off_is_switched_on_again(cluster, events):
    spec = await cluster.announce(AppSpec(name="unguarded", cpu_limit=0.5, memory_limit=256 * MIB))
    container = cluster.container(spec.name, "web")
    await at_rest(spec, container)
    assert container.guarded

    other_hands.give_the_kernel_its_kill_back(cluster.tree, container.directory)
    await until(lambda: container.guarded, within_s=NOTICED_S, what="guarded again")
    await until(lambda: told(events, container.key, ContainerChange.DRIFTED), what="told")
    [event] = told(events, container.key, ContainerChange.DRIFTED)
    assert "its memory guard was disabled" in event.reason
    cluster.remove(container)


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


@pytest.mark.machine
async def test_groups_that_vanish_under_guard_do_no_harm(cluster, events):
    """Among others that stay, one that is at its limit."""
    spec = await cluster.announce(AppSpec(name="vanishing", cpu_limit=0.5, memory_limit=256 * MIB))
    stays, *others = (cluster.container(spec.name, name) for name in ("stays", "idle", "busy", "full"))
    async with watch(cluster, spec) as checker:
        await until(lambda: all(c.guarded for c in (stays, *others)), within_s=60, what="all guarded")
        others[1].tell("burn")
        grow(others[2], 120, rate=200 * MIB)
        await until(lambda: others[2].read().usage_bytes > 60 * MIB, what="one that grows")
        for container in others:
            await asyncio.to_thread(cluster.remove, container)
        for container in others:
            await until(lambda key=container.key: told(events, key, ContainerChange.EXITED), what="its end told")
        grow(stays, 150)
        await grown(stays)
        await checker.settled()
        await poll(lambda: _counts(cluster, spec, 1), what="one container counted")
    assert checker.rules.kills == []
    cluster.remove(stays)


async def _counts(cluster: ClusterLab, spec: AppSpec, containers: int) -> bool:
    return len((await cluster.state(spec.name)).containers) == containers


async def test_a_graceful_stop_restores_what_was_there_before_the_first_agent_although_that_one_was_killed(
    bare_cluster, events
):
    """With `no_op_writes`, the fixture of all, watching; every agent changes what the one before it has left."""
    root = f"{bare_cluster.root}-r"
    spec = await bare_cluster.announce(AppSpec(name="restored", cpu_limit=0.5, memory_limit=300 * MIB))
    original = 12_000, 90 * MIB
    container = bare_cluster.container(spec.name, "web", *original, root=root)
    before = container.read()
    for ending in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        agent = await bare_cluster.launch_agent(node="n5", root=root).ready()
        await until(lambda agent=agent: _found(agent, container), what="found by this agent, not by the one before")
        await until(lambda: container.guarded, within_s=60, what="guarded")
        grow(container, 20)
        await grown(container)
        container.tell("burn")
        await until(lambda: container.quota_us >= 40_000, within_s=60, what="another quota")
        await until(lambda: container.limit_bytes != original[1], within_s=60, what="another memory limit")
        container.tell("idle")
        grow(container, 1)
        await grown(container)
        released = _released(events, container)
        await agent.signal(ending)
        if ending is signal.SIGTERM:
            assert container.read().limits == original
            assert container.read().memsw_bytes == before.memsw_bytes
            assert not container.guarded
            await until(lambda n=released: _released(events, container) > n, what="its release told")
        else:
            assert container.read().limits != original, "a crash leaves what was granted last"
            assert container.guarded
    bare_cluster.remove(container)


def _found(agent: ServiceProcess, container: LabContainer) -> bool:
    return any(line["event"] == "container_found" and container.key in line.values() for line in agent.log())


def _released(events: MessageLog, container: LabContainer) -> int:
    return len(told(events, container.key, ContainerChange.RELEASED))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of so few pages that a state directory soon fills it."""
    directory = tmp_path / "state"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tiny", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_state_directory_that_is_full_at_the_start_ends_the_agent_with_a_remedy(bare_cluster, tiny):
    fill(tiny)
    agent = bare_cluster.launch(
        "agent",
        AGENT__NODE="n6",
        AGENT__MANAGED_ROOT=f"{bare_cluster.root}-t",
        AGENT__DOCKER="off",
        AGENT__STATE_DIRECTORY=str(tiny),
    )
    assert await agent.exit_code() == 78
    log = agent.log_path.read_text(encoding="utf-8")
    assert "No space left on device" in log
    assert "TURNBUCKLE_AGENT__STATE_DIRECTORY" in log


@pytest.mark.machine
async def test_while_the_state_directory_is_full_containers_are_followed_and_nobody_hangs(cluster, tiny):
    """What cannot be written down is not granted by the agent itself: the allocator's orders raise limits then."""
    root = f"{cluster.root}-t"
    agent = await cluster.launch(
        "agent", AGENT__NODE="n7", AGENT__MANAGED_ROOT=root, AGENT__DOCKER="off", AGENT__STATE_DIRECTORY=str(tiny)
    ).ready()
    spec = await cluster.announce(AppSpec(name="full", cpu_limit=0.5, memory_limit=300 * MIB))
    first = cluster.container(spec.name, "first", root=root)
    await until(lambda: first.guarded and first.limit_bytes > 0, within_s=60, what="guarded")
    fill(tiny)
    second = cluster.container(spec.name, "second", root=root)
    async with watch(cluster, spec, roots=(root,)) as checker:
        await until(lambda: second.limit_bytes > 0, within_s=60, what="the second one managed")
        for container in (first, second):
            grow(container, 90, rate=100 * MIB)
            await grown(container)
        await checker.settled()
    assert checker.rules.kills == []
    assert first.alive
    assert second.alive
    assert agent.running
    assert await agent.signal(signal.SIGTERM) == 0
    assert [container.read().limits for container in (first, second)] == [(UNLIMITED, UNLIMITED)] * 2
    assert not first.guarded
    assert not second.guarded
    for container in (first, second):
        cluster.remove(container)


def fill(directory: Path) -> None:
    """Until not one byte more can be written."""
    with suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
