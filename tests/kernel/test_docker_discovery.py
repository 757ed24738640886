"""Discovery through a real Docker Engine, and the handle of a real container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from services.agent.discovery.docker import DockerDiscovery
from services.agent.ports import FoundContainer, GoneContainer, RejectedContainer, SourceAnswered
from tests.support.deadline import until
from tests.support.docker_lab import CuttableProxy, DockerLab

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.slow]
APP = f"lab{os.getpid()}"
SHOP = {"turnbuckle.app": APP}


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


async def test_what_ran_before_is_found_at_the_start(engine):
    container_id = await asyncio.to_thread(engine.run, name="early", labels={**SHOP, "turnbuckle.name": "front"})
    watcher = Watcher()
    await until(lambda: watcher.found(container_id), within_s=60, what="found")
    assert watcher.found(container_id)[0].name == "front"
    await watcher.stop()


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
