"""Discovery through a real Docker Engine, and the handle of a real container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import Notification, NotificationKind, WriteOutcome
from services._host.cgroupfs import detect
from services.agent.cgroup.open import open_host
from services.agent.discovery.docker import DockerDiscovery
from services.agent.ports import FoundContainer, GoneContainer, RejectedContainer, SourceAnswered
from tests.support.deadline import until
from tests.support.docker_lab import CuttableProxy, DockerLab

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow]
MIB = 1 << 20
APP = f"lab{os.getpid()}"
SHOP = {"turnbuckle.app": APP}
GROW_WHEN_TOLD = """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("waits", flush=True)
signal.sigwait({signal.SIGUSR1})
held = bytearray(80 << 20)
time.sleep(1000)
"""


@pytest.fixture
def engine() -> Iterator[DockerLab]:
    lab = DockerLab()
    try:
        yield lab
    finally:
        lab.close()


class Watcher:
    """A running discovery and what it reported about containers of this test."""

    def __init__(self, base_url: str | None = None) -> None:
        self.reports: list[object] = []
        self.discovery = DockerDiscovery(base_url)
        self._ids: set[str] = set()
        self._task = asyncio.create_task(self.discovery.run(self.keep))

    def keep(self, report) -> None:
        """Others may run labelled containers on this engine at the same time."""
        if isinstance(report, FoundContainer | RejectedContainer) and report.app.startswith(APP):
            self._ids.add(report.container_id)
        if not isinstance(report, SourceAnswered) and report.container_id in self._ids:
            self.reports.append(report)

    def found(self, container_id: str) -> list[FoundContainer]:
        return [r for r in self.reports if isinstance(r, FoundContainer) and r.container_id == container_id]

    def is_gone(self, container_id: str) -> bool:
        return GoneContainer(container_id) in self.reports

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
async def watcher() -> AsyncIterator[Watcher]:
    watcher = Watcher()
    await until(lambda: watcher.discovery.available)
    yield watcher
    await watcher.stop()


async def test_found_within_a_second_and_gone_within_a_second(engine, watcher):
    container_id = await asyncio.to_thread(engine.run, name="web", labels=SHOP)
    await until(lambda: watcher.found(container_id), within_s=60, what="found")
    [found] = watcher.found(container_id)
    assert (found.app, found.name, found.source) == (APP, f"web-{os.getpid()}", ContainerSource.DOCKER)
    assert found.pid is not None
    await asyncio.to_thread(engine.client.kill, container_id)
    await until(lambda: watcher.is_gone(container_id), within_s=60, what="gone")
    assert len(watcher.reports) == 2


async def test_what_ran_before_is_found_at_the_start(engine):
    container_id = await asyncio.to_thread(engine.run, name="early", labels={**SHOP, "turnbuckle.name": "front"})
    watcher = Watcher()
    await until(lambda: watcher.found(container_id), within_s=60, what="found")
    assert watcher.found(container_id)[0].name == "front"
    await watcher.stop()


async def test_odd_labels_are_rejected_and_unlabelled_ones_ignored(engine, watcher):
    await asyncio.to_thread(engine.run, name="plain")
    odd = await asyncio.to_thread(engine.run, name="odd", labels={"turnbuckle.app": f"{APP} Ω*>"})
    good = await asyncio.to_thread(engine.run, name="good", labels=SHOP)
    await until(lambda: watcher.found(good), within_s=60)
    [rejected, found] = watcher.reports
    assert isinstance(rejected, RejectedContainer)
    assert (rejected.container_id, rejected.app) == (odd, f"{APP} Ω*>")
    assert "does not match" in rejected.reason
    assert isinstance(found, FoundContainer)


async def test_a_paused_container_stays(engine, watcher):
    container_id = await asyncio.to_thread(engine.run, name="paused", labels=SHOP)
    await until(lambda: watcher.found(container_id), within_s=60)
    await asyncio.to_thread(engine.client.pause, container_id)
    other = await asyncio.to_thread(engine.run, name="other", labels=SHOP)
    await until(lambda: watcher.found(other), within_s=60)
    await asyncio.to_thread(engine.client.unpause, container_id)
    assert not watcher.is_gone(container_id)


async def test_a_restarted_container_is_gone_and_found_with_its_new_process(engine, watcher):
    container_id = await asyncio.to_thread(engine.run, name="again", labels=SHOP)
    await until(lambda: watcher.found(container_id), within_s=60)
    await asyncio.to_thread(engine.client.restart, container_id, timeout=0)
    await until(lambda: len(watcher.found(container_id)) == 2, within_s=60, what="found again")
    first, second = watcher.found(container_id)
    assert first.pid != second.pid
    assert watcher.reports == [first, GoneContainer(container_id), second]


async def test_a_broken_event_stream_is_survived(engine, tmp_path):
    """The engine goes away while containers start and stop, and comes back."""
    proxy = CuttableProxy(tmp_path / "docker.sock")
    await proxy.open()
    watcher = Watcher(proxy.url)
    before = await asyncio.to_thread(engine.run, name="before", labels=SHOP)
    await until(lambda: watcher.found(before), within_s=60)
    await proxy.cut()
    await until(lambda: not watcher.discovery.available, within_s=60, what="unavailable")
    during = await asyncio.to_thread(engine.run, name="during", labels=SHOP)
    await asyncio.to_thread(engine.remove, before)
    assert watcher.reports == watcher.found(before)
    await proxy.open()
    await until(lambda: watcher.found(during) and watcher.is_gone(before), within_s=60, what="the changes meanwhile")
    await until(lambda: watcher.discovery.available, what="that it says so")
    after = await asyncio.to_thread(engine.run, name="after", labels=SHOP)
    await until(lambda: watcher.found(after), within_s=60, what="found by the new stream")
    assert len(watcher.found(during)) == 1
    await watcher.stop()
    await proxy.cut()


async def test_cancelling_is_quick_and_leaves_no_thread(watcher):
    start_s = time.monotonic()
    await watcher.stop()
    assert time.monotonic() - start_s < 60
    await until(lambda: not any(thread.name.startswith("docker-") for thread in threading.enumerate()), within_s=60)
    assert not watcher.discovery.available


async def test_memory_rises_above_dockers_swap_limit_and_all_is_put_back(engine, watcher):
    """Docker sets memory plus swap to twice the memory, and a period of its own if asked."""
    container_id = await asyncio.to_thread(
        engine.run, name="limits", labels=SHOP, mem_limit=32 * MIB, cpu_quota=10_000, cpu_period=50_000
    )
    await until(lambda: watcher.found(container_id), within_s=60)
    host = open_host(detect())
    handle = host.open(watcher.found(container_id)[0])
    assert handle is not None
    assert handle.read_limits() == (20_000, 32 * MIB)
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    assert handle.write_quota(35_000) is WriteOutcome.WRITTEN
    assert handle.read_limits() == (35_000, 200 * MIB)
    counters = handle.read()
    assert counters is not None
    assert counters.memory_bytes > 0
    handle.restore()
    assert handle.read_limits() == (20_000, 32 * MIB)
    assert host.no_op_writes == 0
    await asyncio.to_thread(engine.remove, container_id)
    await until(lambda: handle.read() is None, what="the end of its control group")
    handle.close()


async def test_a_guarded_container_waits_at_dockers_limit_and_goes_on_above_it(engine, watcher):
    container_id = await asyncio.to_thread(
        engine.run, sys.executable, "-S", "-c", GROW_WHEN_TOLD, name="grow", labels=SHOP, mem_limit=32 * MIB
    )
    await until(lambda: watcher.found(container_id), within_s=60)
    host = open_host(detect())
    handle = host.open(watcher.found(container_id)[0])
    assert handle is not None
    handle.enable_oom_control()
    await until(lambda: b"waits" in engine.client.logs(container_id), what="a process that can be told")
    await asyncio.to_thread(engine.client.kill, container_id, "SIGUSR1")
    await until(lambda: handle.read_memory().paused, what="the wait")
    paused = Notification(watcher.found(container_id)[0].key, NotificationKind.PAUSED)
    await until(lambda: paused in host.take_notifications(), what="its notification")
    assert handle.write_memory(200 * MIB) is WriteOutcome.WRITTEN
    await until(lambda: handle.read_memory().usage_bytes > 80 * MIB, what="80 MiB held")
    assert handle.read_oom_kills() == 0
    await asyncio.to_thread(engine.remove, container_id)
    await until(lambda: handle.read_memory() is None)
    handle.close()
    host.close()
