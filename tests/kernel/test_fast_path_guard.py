"""An override does not outlive its fast path: a reconciler empties the table of one that is frozen or killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.network import RouteKind
from schemas.streams import ROUTE_STREAM
from services.cli.up.demo_docker import host_mounts
from services.fabric.testbed.sidecars import fast_path_is_ready
from services.reconciler.service import Reconciler
from services.reconciler.settings import ReconcilerSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.docker_lab import DockerLab
from tests.support.fast_path_lab import HostNamespace
from tests.support.fast_path_process import environment_of, fast_path_in_a_group
from tests.support.service_in_process import run_in_process

pytestmark = [pytest.mark.netns, pytest.mark.root]
H2, H3 = "10.255.0.2", "10.255.0.3"
WITHIN_S = 60.0
"""A second is promised with the fast path's own settings; measured with those: 0.75 s."""


@pytest.fixture
def host():
    made = HostNamespace(1)
    made.start()
    for destination in (H2, H3):
        made.frr_route(destination, "p1", "p2")
    yield made
    made.stop()


@asynccontextmanager
async def reconciler_of(host, tmp_path):
    """A reconciler of the same namespace, in this process; what it tells."""
    broker, events = MemoryBroker(), []

    async def take(delivery):
        events.append(delivery.message)

    theirs, ours = MemoryBus(broker), MemoryBus(broker)
    await ours.replay(ROUTE_STREAM, take)
    values = {"node": "n1", "netns": host.name, "state_directory": tmp_path / "state", "path_audit": "off"}
    async with run_in_process(Reconciler, ReconcilerSettings.load({}, **values), theirs):
        yield events
    for bus in (theirs, ours):
        await bus.close(1.0)


async def overridden(host):
    """Wait for a fast path that sees, and have it override."""
    await until(lambda: fast_path_is_ready(host.name) and host.bfdd.subscribers, within_s=60, what="a fast path")
    host.bfdd.change("p1", "down")
    await until(lambda: host.overrides() == {H2: ["p2"], H3: ["p2"]}, within_s=60, what="overrides")


async def emptied(host, events, what, *, told=True):
    """Wait for an empty table, and for what is told of it."""
    began_s = time.monotonic()
    await until(lambda: not host.overrides() and not host.rules(), within_s=WITHIN_S, what="an empty table")
    figure = f"{what}: emptied after {time.monotonic() - began_s:.2f} s"
    print(figure)  # noqa: T201 - for whoever measures, with pytest -s
    assert "dev p" in host.ip("route", "get", H2), "FRR's route stands"
    if not told:
        return
    await until(lambda: silent(events), what="a fact")
    (event,) = silent(events)
    assert (event.kind, event.source, event.alarm) == (RouteKind.OVERRIDE_REMOVED, "guard", True)
    assert {event.destination, *event.also} == {H2, H3}
    assert "no sign of life" in event.reason


def silent(events):
    return [event for event in events if event.cause == "fast_path_unresponsive"]


async def answers_again(host):
    """The fast path has noticed, and answers the next fault."""
    await until(host.rules, within_s=60, what="its rule again")
    host.bfdd.change("p1", "up")
    host.bfdd.change("p2", "down")
    await until(lambda: host.overrides() == {H2: ["p1"], H3: ["p1"]}, within_s=60, what="new overrides")


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_all_its_processes_stand_still(host, tmp_path, how) -> None:
    async with reconciler_of(host, tmp_path) as events:
        with fast_path_in_a_group(host, tmp_path / "state") as group:
            await overridden(host)
            assert len(group.pids()) == 3
            if how == "stopped":
                group.signal(signal.SIGSTOP)
            else:
                group.freeze(on=True)
            await emptied(host, events, how)
            if how == "stopped":
                group.signal(signal.SIGCONT)
            else:
                group.freeze(on=False)
            await answers_again(host)
            assert len(silent(events)) == 1, "nobody empties what a living one has written"


async def test_all_its_processes_are_killed(host, tmp_path) -> None:
    async with reconciler_of(host, tmp_path) as events:
        with fast_path_in_a_group(host, tmp_path / "state") as group:
            await overridden(host)
            group.kill_at_once()
            await emptied(host, events, "killed")
        before = host.bfdd.subscribers
        with fast_path_in_a_group(host, tmp_path / "state"):
            await until(lambda: host.bfdd.subscribers > before, within_s=60, what="the next one")
            await answers_again(host)


async def test_a_reconciler_that_begins_after_its_end(host, tmp_path) -> None:
    with fast_path_in_a_group(host, tmp_path / "state") as group:
        await overridden(host)
        group.kill_at_once()
    assert host.overrides() == {H2: ["p2"], H3: ["p2"]}, "without a reconciler nobody empties it"
    async with reconciler_of(host, tmp_path) as events:
        await emptied(host, events, "found")


async def test_one_that_is_slow_for_a_moment_keeps_its_overrides(host, tmp_path) -> None:
    """It stands still for far less than its watchdog and the reconciler wait for."""
    async with reconciler_of(host, tmp_path) as events:
        with fast_path_in_a_group(host, tmp_path / "state", watchdog_timeout_s="20") as group:
            await overridden(host)
            for _ in range(4):
                group.freeze(on=True)
                began_s = time.monotonic()
                await until(lambda began_s=began_s: time.monotonic() > began_s + 0.5, what="half a second")
                group.freeze(on=False)
                await until(lambda began_s=began_s: time.monotonic() > began_s + 1.0, what="half a second more")
            assert host.overrides() == {H2: ["p2"], H3: ["p2"]}
            assert host.rules()
            assert not silent(events)


@pytest.fixture
def container(host, tmp_path):
    """A fast path in a container with the host's network."""
    lab = DockerLab()
    words = [f"{name}={value}" for name, value in environment_of(host, tmp_path / "state").items()]
    repository = str(Path.cwd())
    (tmp_path / "state").mkdir()
    writable = [f"{path}:{path}" for path in (tmp_path / "state", host.directory, "/run/netns")]
    created = lab.client.create_container(
        lab.image,
        ["/usr/bin/env", *words, sys.executable, "-m", "services.fastpath"],
        name=f"tb-fast-path-{os.getpid()}",
        working_dir=repository,
        host_config=lab.client.create_host_config(
            binds=[*host_mounts(repository), *writable],
            cap_add=["NET_ADMIN", "NET_RAW", "SYS_ADMIN"],
            network_mode="host",
        ),
    )
    lab.ids.append(str(created["Id"]))
    try:
        lab.client.start(lab.ids[0])
        yield lab
    finally:
        lab.close()


@pytest.mark.docker
@pytest.mark.parametrize("how", ["pause", "kill"])
async def test_its_container_is_paused_or_killed(host, tmp_path, container, how) -> None:
    async with reconciler_of(host, tmp_path) as events:
        try:
            await overridden(host)
        except AssertionError as error:
            raise AssertionError(container.client.logs(container.ids[0]).decode()[-2_000:]) from error
        if how == "pause":
            container.client.pause(container.ids[0])
        else:
            container.client.kill(container.ids[0])
        # The kernel closes what the first process had open before it kills the others: its data plane may be quicker.
        await emptied(host, events, f"docker {how}", told=how == "pause")
        if how == "pause":
            container.client.unpause(container.ids[0])
            await answers_again(host)
            assert len(silent(events)) == 1
