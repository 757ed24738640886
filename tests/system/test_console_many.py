"""The console with thousands of containers: all can be found, and only those in sight are elements."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.bench.cluster import open_cluster
from tests.bench.synthetic_agents import Load
from tests.support.chromium import browser, find_chromium
from tests.support.console_lab import WITHIN_MS, Stack, console_url, end, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]


CONTAINERS = 5_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def many() -> AsyncIterator[tuple[Stack, int]]:
    """A console beside synthetic agents of ten nodes; no allocator runs."""
    find_chromium()
    count = CONTAINERS
    load = Load(count, count // 10, count // 5, change_share=0.1)
    async with open_cluster() as cluster, cluster.run("tests.bench.synthetic_agents", load.as_environment()):
        console = launch("console", "--port", "0", "--json", "--server", cluster.server.url)
        try:
            url = await console_url(console)
            async with browser() as chromium:
                stack = Stack(cluster.bus, cluster.server.url, url, chromium)
                yield stack, count
                assert stack.complaints == []
        finally:
            assert await asyncio.to_thread(end, console) == (0, "")


async def test_every_container_can_be_found(many: tuple[Stack, int]) -> None:
    stack, count = many
    page = await stack.page()
    await page.click("#tab-containers")
    table = page.locator(f'table[aria-rowcount="{count + 1}"]')
    await table.wait_for(timeout=WITHIN_MS)
    assert 10 < await table.locator("tbody tr").count() < 60
    assert await table.locator("tbody th").first.inner_text() == "c0"
    # The last one is at the end.
    await page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
    last = table.locator(f'tr[aria-rowindex="{count + 1}"]')
    await last.wait_for(timeout=WITHIN_MS)
    assert await last.locator("th").inner_text() == f"c{count - 1}"
    assert await table.locator("tbody tr").count() < 60
    # One in the middle is found by its name, its application and its node, in any order.
    wanted = count // 2 + 7
    await page.fill("#search", f"NODE5 c{wanted}- app2")
    row = page.locator('table[aria-rowcount="2"] tbody tr')
    await row.wait_for(timeout=WITHIN_MS)
    assert (await row.locator("th, td.app, td.node").all_inner_texts()) == [f"c{wanted}", "app2", "node5"]
    await page.fill("#search", "nobody-is-named-so")
    await page.locator('table[aria-rowcount="1"]').wait_for(timeout=WITHIN_MS)
    assert await page.locator("tbody tr").count() == 0
    await page.close()


@pytest.mark.parametrize(("column", "cells"), [("cpu", 4), ("throttled", 5), ("memory", 6)])
async def test_the_largest_come_first(many: tuple[Stack, int], column: str, cells: int) -> None:
    stack, count = many
    page = await stack.page()
    await page.click("#tab-containers")
    await page.locator(f'table[aria-rowcount="{count + 1}"]').wait_for(timeout=WITHIN_MS)
    await page.locator(f"th.{column} button").click()
    await page.locator(f'th.{column}[aria-sort="descending"]').wait_for(timeout=WITHIN_MS)
    texts = await page.locator(f"tbody tr td:nth-child({cells + 1})").all_inner_texts()
    values = [float(re.findall(r"[\d.]+", text)[0]) for text in texts]
    assert len(values) > 10
    assert values == sorted(values, reverse=True)
    await page.wait_for_url(re.compile(rf"#containers[?]sort=-{column}$"), timeout=WITHIN_MS)
    await page.locator(f"th.{column} button").click()
    await page.locator(f'th.{column}[aria-sort="ascending"]').wait_for(timeout=WITHIN_MS)
    await page.close()


async def test_an_application_lists_all_of_its_own(many: tuple[Stack, int]) -> None:
    stack, count = many
    page = await stack.beside(await stack.page(), f"{stack.address}#applications?app=app1")
    card = page.locator('[data-app="app1"]')
    await card.locator(f'table[aria-rowcount="{count // 5 + 1}"]').wait_for(timeout=WITHIN_MS)
    assert await page.locator("[data-app]").count() == 1
    assert await card.locator("tbody tr").count() < 40
    await card.locator(".u-over").first.wait_for(timeout=WITHIN_MS)
    await page.context.close()
