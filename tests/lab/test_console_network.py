"""`turnbuckle console` beside the dual-ToR lab with real reconcilers: the picture, a fault, and its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from services._runtime.bus.embedded_server import EmbeddedNats
from services.fabric.testbed.lab import Lab
from tests.support.chromium import browser, find_chromium
from tests.support.console_lab import DESKTOP, WITHIN_MS, console_url, end, environment, launch
from tests.support.lab_faults import blackhole

pytestmark = [pytest.mark.netns, pytest.mark.slow]


def reconciler(lab: Lab, index: int, nats: str, directory: Path) -> subprocess.Popen[bytes]:
    """As `turnbuckle lab up --reconciler` starts it, also where the kernel has no flower: it watches all the same."""
    host = lab.topology.hosts[index]
    ours = {
        "NODE": host.netns,
        "NETNS": host.netns,
        "FRR_PATHSPACE": host.netns,
        "PORTS": f"rep0={host.application_mac}",
        "STATE_DIRECTORY": str(directory / host.netns),
    }
    variables = {f"TURNBUCKLE_RECONCILER__{name}": value for name, value in ours.items()}
    log = directory / f"{host.netns}.log"
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "services.reconciler"],
            env=environment() | variables | {"NATS_URL": nats, "TURNBUCKLE_HEALTH_PORT": "0"},
            stderr=out,
        )


class Shown:
    """A browser that looks at the console."""

    def __init__(self, chromium: Any, url: str) -> None:
        self._chromium = chromium
        self._url = url

    async def network(self) -> Any:
        """A new page with the network in it."""
        page = await self._chromium.new_page(viewport=DESKTOP)
        page.set_default_timeout(WITHIN_MS)
        await page.goto(self._url)
        await page.click("#tab-network")
        return page


@pytest.fixture
async def shown(whole: Lab, tmp_path: Path) -> AsyncIterator[Shown]:
    find_chromium()
    async with EmbeddedNats() as nats, AsyncExitStack() as stack:
        for index in range(2):
            process = reconciler(whole, index, nats.url, tmp_path)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        console = launch("console", "--port", "0", "--json", "--server", nats.url)
        try:
            url = await console_url(console)
            async with browser() as chromium:
                yield Shown(chromium, url)
        finally:
            assert await asyncio.to_thread(end, console) == (0, "")


async def label_is(page: Any, label: str) -> None:
    """Wait until the picture says so."""
    await page.locator(f'svg[aria-label="Topology. {label}"]').wait_for(timeout=WITHIN_MS)


async def test_a_dead_uplink_stays_in_the_picture(whole: Lab, shown: Shown) -> None:
    one, other = (host.netns for host in whole.topology.hosts)
    healthy = f"{one}: p1 up, p2 up; {other}: p1 up, p2 up"
    page = await shown.network()
    await label_is(page, healthy)
    vteps = [await page.locator(".box.host").nth(at).locator(".sub").text_content() for at in range(2)]
    assert vteps == [host.vtep for host in whole.topology.hosts]

    # All withdraw a route through a dead link within a second: no path names that link any more.
    broken = f"{one}: p1 down, p2 up; {other}: p1 idle, p2 up"
    with whole.fault(blackhole(1, 1)):
        await label_is(page, broken)
        assert await page.locator(".cross").count() == 1
        # Of the routes that change, which is told last is FRR's business.
        routes = page.locator(".event.route", has_text=one)
        await routes.locator("p", has_text="p1 p2 → p2").first.wait_for(timeout=WITHIN_MS)
        # A page that is opened now learns of the link from what was told before.
        late = await shown.network()
        await label_is(late, broken)
    await label_is(page, healthy)
    assert await page.locator(".cross").count() == 0
