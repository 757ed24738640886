"""The whole stack with collector and advisor, in real containers: `make test-host`. The images take minutes.

What crashes, and `down`: tests/system/test_compose.py, with the services that need no PyTorch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from docker.models.containers import Container

from schemas.containers import ContainerChange
from schemas.subjects import LIMIT_DECISIONS
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.support import compose_lab
from tests.support.compose_lab import LOADS, ComposeProject, SumWatch
from tests.support.compose_load import Cloud, Load, bridge_address, cloud_for_containers
from tests.support.compose_running import (
    BACK_S,
    Decisions,
    Running,
    assert_nothing_is_gone,
    assert_within_limits,
    kill,
    start,
)
from tests.support.deadline import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
    # Docker's proxy takes connections while the server behind it is away; nats-py leaves them to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FIGURES = logging.getLogger("figures")
"""--log-cli-level=INFO shows them."""
REPLICAS = {"nats": 1, "agent": 1, "allocator": 3, "reconciler": 1, "collector": 2, "advisor": 1}
SCALE = ("--scale", "allocator=3", "--scale", "collector=2")
MODEL_S = 120.0
"""Until the advisor has learned from the shipped records."""
TELLING_S = 120.0
UNDER_WAY_S = 5.0
"""An advisor that is killed right after an answer may not have told of it yet."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    compose_lab.require("docker-compose", "debootstrap")
    client = compose_lab.docker.from_env()
    with cloud_for_containers(bridge_address(client)) as cloud:
        yield cloud
    client.close()


@pytest.fixture(scope="module")
def project(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeProject]:
    """Up, scaled, with the demo."""
    compose_lab.make_images()
    overlay = cloud.overlay(tmp_path_factory.mktemp("overlay") / "load.yaml")
    project = ComposeProject("compose.demo.yaml", str(overlay))
    with compose_lab.preferred(project.layout):
        try:
            project.up(*SCALE, *REPLICAS, "announce", *LOADS)
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


@pytest.fixture(scope="module")
def load(running: Running, cloud: Cloud) -> Load:
    return Load(running.bus, cloud)


@pytest.fixture
def bystanders() -> Iterator[list[Container]]:
    started: list[Container] = []
    yield started
    for container in started:
        container.remove(force=True)


async def wait_healthy(project: ComposeProject, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    for service, replicas in REPLICAS.items():
        left_s = deadline - time.monotonic()
        await asyncio.to_thread(project.wait_healthy, service, replicas=replicas, within_s=left_s)


async def all_told(load: Load, killed_s: float) -> None:
    """Every job that ended is recorded once, and every answer was told of once."""
    submitted = set(load.cloud.submitted)
    answers = [job for job, at_s in load.answered.items() if not killed_s - UNDER_WAY_S < at_s < killed_s]
    deadline = time.monotonic() + TELLING_S
    while missing := submitted - (await load.recorded()).keys():
        assert time.monotonic() < deadline, f"{len(missing)} of {len(submitted)} jobs are not recorded"
        await asyncio.sleep(0.1)
    assert set((await load.recorded()).values()) == {1}
    while missing := set(answers) - (await load.predicted()).keys():
        assert time.monotonic() < deadline, f"{len(missing)} of {len(answers)} answers are not told of"
        await asyncio.sleep(0.1)
    assert set((await load.predicted()).values()) <= {1}


async def test_all_are_healthy_scaled_and_at_work(running, load):
    """Six services, nine containers; the demo is managed, jobs are recorded, a question is answered."""
    await wait_healthy(running.project, compose_lab.START_S)
    await running.decisions.next_one()
    async with load.running():
        await until(lambda: load.answered and load.cloud.submitted, within_s=MODEL_S, what="an answer and a job")
    await all_told(load, killed_s=0.0)
    replicas = running.project.containers("collector")
    held = {container.exec_run(["ls", "/var/lib/turnbuckle/collector"])[1].decode() for container in replicas}
    assert held == {"1\n2\n"}, "each has a journal of its own"


@pytest.mark.parametrize("service", REPLICAS)
async def test_every_replica_killed_under_load_is_back_within_ten_seconds_and_nothing_is_lost(
    running, load, bystanders, service
):
    """While jobs end, questions are asked and containers start; the counts agree afterwards."""
    project = running.project
    stored = await asyncio.to_thread(project.streams)
    with SumWatch(project.load_pids(), project.layout) as sums:
        async with load.running():
            await running.decisions.next_one()
            killed_s = time.monotonic()
            await asyncio.to_thread(kill, project, service)
            meanwhile = start(project, bystanders, "meanwhile")
            start_s = time.monotonic()
            await asyncio.to_thread(project.up, "--no-deps", "--no-recreate", *SCALE, service)
            up_s = time.monotonic() - start_s
            await wait_healthy(project, BACK_S - up_s)
            back_s = time.monotonic() - start_s
            await until(lambda: running.bus.connected, within_s=60, what="our own connection")
            await running.decisions.next_one()
            asked = len(load.answered)
            await until(lambda: len(load.answered) > asked, within_s=60, what="an answer of the advisor")
            answered_s = time.monotonic() - start_s
    FIGURES.info(
        "%s: `up` took %.1f s, healthy after %.1f s, at work after %.1f s; load average %.1f",
        service,
        up_s,
        back_s,
        answered_s,
        os.getloadavg()[0],
    )
    assert back_s <= BACK_S
    assert_within_limits(sums)
    assert await running.told_of(meanwhile) == [ContainerChange.STARTED]
    await all_told(load, killed_s)
    assert_nothing_is_gone(stored, await asyncio.to_thread(project.streams))
