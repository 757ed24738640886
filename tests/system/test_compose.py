"""compose.yaml and compose.demo.yaml run by a real docker-compose, from images made without a registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from docker.models.containers import Container

from schemas.containers import ContainerChange
from schemas.streams import APPS
from schemas.subjects import LIMIT_DECISIONS
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from services.agent.doctor import running_watchdogs
from tests.support import compose_lab
from tests.support.compose_lab import LIGHT, LOADS, RUNNING, ComposeProject, Limits, SumWatch, limits_of
from tests.support.compose_running import (
    BACK_S,
    Decisions,
    Running,
    assert_nothing_is_gone,
    assert_within_limits,
    crash,
    kill,
    start,
)
from tests.support.deadline import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first test waits for the images
    pytest.mark.asyncio(loop_scope="module"),
    # Docker's proxy takes connections while the server behind it is away; nats-py leaves them to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MIB = 1 << 20
STATIC_QUOTA_US = 15_000
"""Of compose.demo.yaml: 0.15 cores each."""


@pytest.fixture(scope="module")
def project() -> Iterator[ComposeProject]:
    """Up, with the demo; taken down whatever happens."""
    compose_lab.require("docker-compose", "debootstrap")
    compose_lab.make_images(*LIGHT)
    project = ComposeProject("compose.demo.yaml")
    with compose_lab.preferred(project.layout):
        try:
            project.up(*RUNNING, "announce", *LOADS)
            project.wait_healthy(*RUNNING)
            yield project
        finally:
            project.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(project: ComposeProject) -> AsyncIterator[Running]:
    bus = await NatsBus.connect(BusOptions(servers=(project.url,), connect_deadline_s=60))
    decisions = Decisions()
    await bus.subscribe(LIMIT_DECISIONS.pattern(bus.root), decisions.take)
    yield Running(project, bus, decisions)
    await bus.close(2.0)


@pytest.fixture
def bystanders(project: ComposeProject) -> Iterator[list[Container]]:
    """Containers that no compose file knows, removed at the end."""
    started: list[Container] = []
    yield started
    for container in started:
        container.remove(force=True)


async def test_all_are_healthy_and_the_demo_is_managed(running):
    """Quotas in the kernel leave the static share, and differ between moments: they follow the load."""
    seen: dict[str, set[int]] = {name: set() for name in LOADS}

    def moved() -> bool:
        for name, limits in running.limits().items():
            seen[name].add(limits.quota_us if limits else STATIC_QUOTA_US)
        return all(quotas - {STATIC_QUOTA_US} for quotas in seen.values()) and max(map(len, seen.values())) > 3

    await until(moved, within_s=60, what=f"quotas that move, seen {seen}")
    assert {name: running.project.health(name) for name in RUNNING} == {name: ["healthy"] for name in RUNNING}
    policies = {running.project.container(name).attrs["HostConfig"]["RestartPolicy"]["Name"] for name in RUNNING}
    assert policies == {"unless-stopped"}, "whoever crashes is started again"


async def test_a_crashed_agent_is_back_within_ten_seconds_and_nothing_is_lost(running, bystanders, record_figure):
    """By Docker, which starts it again; that each service may be killed: tests/compose/test_whole_stack.py.

    A container that starts meanwhile is told of exactly once; nothing that was stored before is gone.
    """
    project = running.project
    stored = await asyncio.to_thread(project.streams)
    with SumWatch(project.load_pids(), project.layout) as sums:
        start_s = time.monotonic()
        await asyncio.to_thread(crash, project, "agent")
        meanwhile = start(project, bystanders, "meanwhile")
        await asyncio.to_thread(project.wait_healthy, *RUNNING, within_s=BACK_S)
        back_s = time.monotonic() - start_s
        record_figure("seconds until healthy", round(back_s, 1))
        assert back_s <= BACK_S
        await until(lambda: running.bus.connected, within_s=60, what="our own connection")
        await running.decisions.next_one()
    assert_within_limits(sums)

    assert await running.told_of(meanwhile) == [ContainerChange.STARTED]
    assert_nothing_is_gone(stored, await asyncio.to_thread(project.streams))
    assert "demo" in await running.bus.bucket(APPS).entries()


async def test_the_watchdog_outlives_the_agents_container(running):
    """Who waits for memory is looked after, however the container ends; with the next agent it goes."""
    project = running.project
    await until(lambda: len(watchdogs_of(project)) == 1, what="one watchdog")
    [before] = watchdogs_of(project)
    await asyncio.to_thread(kill, project, "agent")
    assert of_project(before, project)
    await asyncio.to_thread(project.up, "--no-deps", "--no-recreate", "agent")
    await asyncio.to_thread(project.wait_healthy, "agent", within_s=BACK_S)
    await until(lambda: not of_project(before, project), within_s=60, what="the old watchdog gone")
    await until(lambda: len(watchdogs_of(project)) == 1, what="the new watchdog alone")


def watchdogs_of(project: ComposeProject) -> list[int]:
    """Their pids."""
    return [seen.pid for seen in running_watchdogs() if of_project(seen.pid, project)]


def of_project(pid: int, project: ComposeProject) -> bool:
    """Whether a process lives that has the project's state directory mounted."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as mounts:  # noqa: PTH123 - may vanish while it is read
            return f"/{project.state_directory.name} " in mounts.read()
    except OSError:
        return False


async def test_down_leaves_the_limits_of_other_containers_as_they_were(running, bystanders):
    """The last test: one that was managed gets its own limits back, one that was not is never touched."""
    project = running.project
    own = {"nano_cpus": 30 * 10**7, "mem_limit": 200 * MIB}
    managed = start(project, bystanders, "demo", **own)
    apart = start(project, bystanders, None, **own)
    as_they_were = Limits(30_000, 200 * MIB)
    assert limits_of(apart, project.layout) == as_they_were

    def is_managed() -> bool:
        limits = limits_of(managed, project.layout)
        return limits is not None and limits.quota_us != 30_000 and limits.memory_bytes != 200 * MIB

    await until(is_managed, within_s=60, what="managed")
    await asyncio.to_thread(project.run, "down", "--timeout", "60")

    assert limits_of(managed, project.layout) == as_they_were
    assert limits_of(apart, project.layout) == as_they_were
    assert project.client.networks.list(filters={"label": f"com.docker.compose.project={project.name}"}) == []
    await until(lambda: not watchdogs_of(project), within_s=60, what="no watchdog left")
