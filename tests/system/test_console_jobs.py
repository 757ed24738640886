"""The console's page of jobs in a real browser, beside a scheduler that answers as the test has it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.bench.cluster import open_cluster
from tests.support.chromium import browser, find_chromium
from tests.support.console_lab import (
    DESKTOP,
    FAINT_OR_SMALL,
    HOSTILE,
    PHONE,
    WITHIN_MS,
    Stack,
    console_url,
    end,
    launch,
)
from tests.support.deadline import until
from tests.support.job_queue import FakeScheduler, sharing_queue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]

READ_TICKS = """async (count) => {
  const { decode, Frames } = await import("/assets/decode.js");
  const reader = (await fetch("/stream")).body.getReader();
  const frames = new Frames();
  for (let ticks = 0; ticks < count;) {
    const { value } = await reader.read();
    for (const data of frames.push(value)) if (decode(data).type === "console.Tick") ticks += 1;
  }
  await reader.cancel();
}"""


@dataclass
class Ground:
    """What runs."""

    stack: Stack
    scheduler: FakeScheduler


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground() -> AsyncIterator[Ground]:
    find_chromium()
    async with open_cluster() as cluster:
        scheduler = FakeScheduler(cluster.bus)
        await scheduler.start()
        console = launch("console", "--port", "0", "--json", "--server", cluster.server.url)
        try:
            url = await console_url(console)
            async with browser() as chromium:
                yield Ground(Stack(cluster.bus, cluster.server.url, url, chromium), scheduler)
        finally:
            assert await asyncio.to_thread(end, console) == (0, "")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_to_complain_of(ground: Ground) -> AsyncIterator[None]:
    """No error in any page, no breach of the content policy, no request to anybody else."""
    ground.stack.complaints.clear()
    yield
    assert ground.stack.complaints == []


async def test_who_runs_where_and_who_waits_for_what(ground: Ground) -> None:
    page = await ground.stack.page()
    await page.get_by_role("tab", name="Jobs").click()
    jobs = page.get_by_role("region", name="Jobs, in the order of their turn")
    await jobs.locator("tbody tr").nth(4).wait_for(timeout=WITHIN_MS)
    rows = [str(text).split("\t") for text in await jobs.locator("tbody tr").all_inner_texts()]
    assert [row[0] for row in rows] == ["resnet", "bert", "big", "try", "bad"]
    assert rows[0][1:7] == ["running", "3", "n1 x2, n2", "5 min", "3.33 min", "10 min"]
    assert rows[0][7] == "7 min (5 \u2013 10 min)"
    assert re.fullmatch(r"ends .+", rows[0][8])
    assert re.fullmatch(r"starts [\d:]+, ends .+", rows[1][8])
    assert rows[2][8] == "no start in sight"
    assert rows[0][9] == "the largest index; preempted once"
    assert rows[1][9] == "needs 2 slots, 1 is free; behind resnet, try, other and 1 more"
    assert rows[4][9] == f"exit code 1: {HOSTILE}"
    assert await page.locator("#panel img").count() == 0
    facts = await page.get_by_role("region", name="Slots", exact=True).locator(".facts").inner_text()
    assert facts == (
        "3 of 4 slots taken (75 %) · 1 running, 2 waiting · mean completion time 6 min of 1 job in the last hour · "
        "policy index · leader s1"
    )
    label = str(await page.locator("canvas").get_attribute("aria-label"))
    assert re.sub(r"\d\d:\d\d:\d\d", "T", label) == (
        "Slots over time. At T: n1 resnet; n2 resnet; n3 (drained) free; n4 (silent) free"
    )
    nodes = page.get_by_role("region", name="Nodes", exact=True).last
    cells = [str(text).split("\t") for text in await nodes.locator("tbody tr").all_inner_texts()]
    assert [row[:4] for row in cells] == [
        ["n1", "ready", "0", "2"],
        ["n2", "ready", "1", "2"],
        ["n3", "drained", "0", "2"],
        ["n4", "silent", "0", "2"],
    ]
    assert [row[-1] for row in cells[2:]] == ["drained by ann", "silent for 40 s"]
    await page.close()


async def test_a_job_explains_itself_by_keyboard_and_by_link(ground: Ground) -> None:
    page = await ground.stack.beside(await ground.stack.page(), f"{ground.stack.address}#jobs")
    link = page.get_by_role("link", name="bert", exact=True)
    await link.focus()
    await page.keyboard.press("Enter")
    history = page.get_by_role("region", name="History of a job")
    await history.locator("li", has_text="waits: for slots").wait_for(timeout=WITHIN_MS)
    assert "(turn 2, 2 slots free, index 0.41 per slot-hour, had 10 min of slot time)" in await history.inner_text()
    assert "python train.py" in await history.locator(".facts").inner_text()
    assert await link.get_attribute("aria-current") == "true"
    await page.wait_for_url(re.compile(r"#jobs[?]job=bert$"), timeout=WITHIN_MS)
    other = await ground.stack.beside(page, f"{ground.stack.address}#jobs?job=nobody")
    await other.locator("#job-history .warning", has_text="no job is named 'nobody'").wait_for(timeout=WITHIN_MS)
    await history.get_by_role("button", name="Close").click()
    await history.wait_for(state="hidden", timeout=WITHIN_MS)
    await page.wait_for_url(re.compile(r"#jobs$"), timeout=WITHIN_MS)
    await page.context.close()


async def test_search_finds_jobs_by_name_state_and_node(ground: Ground) -> None:
    page = await ground.stack.beside(await ground.stack.page(), f"{ground.stack.address}#jobs")
    names = page.get_by_role("region", name="Jobs, in the order of their turn").locator("tbody th")
    await names.nth(4).wait_for(timeout=WITHIN_MS)
    for search, found in (("waiting", ["bert", "big"]), ("n2", ["resnet"]), ("b waiting", ["bert", "big"])):
        await page.fill("#search", search)
        await names.nth(len(found)).wait_for(state="detached", timeout=WITHIN_MS)
        assert await names.all_inner_texts() == found
        await page.fill("#search", "")
        await names.nth(4).wait_for(timeout=WITHIN_MS)
    await page.context.close()


async def test_the_chart_shows_an_hour_and_zooms(ground: Ground) -> None:
    page = await ground.stack.page()
    await page.click("#tab-jobs")
    await page.locator('canvas[aria-label^="Slots over time"]').wait_for(timeout=WITHIN_MS)
    hour = page.get_by_role("button", name="1 h")
    assert await hour.get_attribute("aria-pressed") == "true"
    await page.wait_for_url(re.compile(r"#jobs$"), timeout=WITHIN_MS)
    await page.get_by_role("button", name="10 min").click()
    await page.wait_for_url(re.compile(r"#jobs[?]zoom=600$"), timeout=WITHIN_MS)
    box = await page.locator("canvas").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.9, middle, steps=5)
    await page.mouse.up()
    await page.wait_for_url(re.compile(r"zoom=\d+\.\d-\d+\.\d$"), timeout=WITHIN_MS)
    begin_s, end_s = map(float, page.url.partition("zoom=")[2].split("-"))
    # Four tenths of the canvas, of which the names of the nodes take 120 px: 600 s x 0.4 w / (w - 120).
    assert end_s - begin_s == pytest.approx(600 * 0.4 * box["width"] / (box["width"] - 120), abs=2)
    await page.get_by_title("Back to now").click()
    # What runs now is at the right end, in the first lane of n1.
    await page.mouse.click(box["x"] + box["width"] - 5, box["y"] + 30)
    await page.wait_for_url(re.compile(r"job=resnet"), timeout=WITHIN_MS)
    await page.close()


@pytest_asyncio.fixture(loop_scope="module")
async def shared(ground: Ground) -> AsyncIterator[None]:
    """Jobs share links meanwhile."""
    before, ground.scheduler.queue = ground.scheduler.queue, sharing_queue
    yield
    ground.scheduler.queue = before


async def test_without_shared_links_nothing_is_said_of_them(ground: Ground) -> None:
    page = await ground.stack.beside(await ground.stack.page(), f"{ground.stack.address}#jobs")
    await page.locator("canvas").wait_for(timeout=WITHIN_MS)
    await page.get_by_role("link", name="resnet", exact=True).wait_for(timeout=WITHIN_MS)
    assert not await page.locator('section[aria-label="Shared links"]').is_visible()
    await page.context.close()


@pytest.mark.usefixtures("shared")
async def test_links_that_jobs_share_with_scores_shifts_and_phases(ground: Ground) -> None:
    page = await ground.stack.page()
    await page.click("#tab-jobs")
    first = page.get_by_role("region", name="rack-1-up", exact=True)
    await first.wait_for(timeout=WITHIN_MS)
    card = page.get_by_role("region", name="Shared links")
    assert "3 links;" in await card.locator(".facts").first.inner_text()
    assert await card.locator("h3").all_inner_texts() == ["rack-1-up", "rack-2-up", "rack-3-up"], (
        "that with the lowest score first"
    )
    assert await first.locator(".facts").inner_text() == (
        "100 Mbit/s · score 0.56 if all begin at once · 0.76 with their shifts"
    )
    rows = [str(text).split("\t") for text in await first.locator("tbody tr").all_inner_texts()]
    assert rows == [
        ["gpt", "1.24 s", "6.44 MiB", "540 ms", "1 s of 1.25 s", "reno"],
        ["new", "not known yet", "", "", "not shifted", ""],
        ["vgg", "1.24 s", "6.44 MiB", "540 ms", "0 of 1.25 s", "reno"],
    ]
    # gpt begins 1,000 ms into a period of 1,250 ms: 250 ms of its 540 lie there, and 290 in the next one, beside vgg.
    assert await first.get_by_role("img").get_attribute("aria-label") == (
        "rack-1-up over 1.25 s: gpt sends 0 \u2013 290 ms, 1 s \u2013 1.25 s; vgg sends 0 \u2013 540 ms; "
        "more than it carries: 0 \u2013 290 ms"
    )
    assert await first.locator("rect.phase").count() == 3
    assert await first.locator("rect.excess").count() == 1
    second = page.get_by_role("region", name="rack-2-up", exact=True)
    assert f"not shifted: they fit beside each other as they are {HOSTILE}" in await second.inner_text()
    third = page.get_by_role("region", name="rack-3-up", exact=True)
    assert await third.locator(".facts").inner_text() == (
        "100 Mbit/s · score not known yet · not shifted: new is not known"
    )
    await first.get_by_role("link", name="gpt").click()
    await page.wait_for_url(re.compile(r"job=gpt$"), timeout=WITHIN_MS)
    await page.close()


async def test_a_queue_that_nobody_looks_at_is_not_asked_for(ground: Ground) -> None:
    page = await ground.stack.page()
    await page.click("#tab-jobs")
    await page.locator("canvas").wait_for(timeout=WITHIN_MS)
    asked = ground.scheduler.asked
    await until(lambda: ground.scheduler.asked >= asked + 2, what="the queue is asked for again")
    await page.click("#tab-applications")
    await page.evaluate(READ_TICKS, 2)  # a question may be under way, and its answer
    asked = ground.scheduler.asked
    await page.evaluate(READ_TICKS, 5)
    assert ground.scheduler.asked == asked
    await page.close()


async def test_without_a_scheduler_it_says_how_to_start_one(ground: Ground) -> None:
    page = await ground.stack.page()
    await page.click("#tab-jobs")
    rows = page.get_by_role("region", name="Jobs, in the order of their turn").locator("tbody tr")
    await rows.nth(4).wait_for(timeout=WITHIN_MS)
    await ground.scheduler.stop()
    try:
        said = page.locator("#panel .view .trouble")
        await said.wait_for(timeout=WITHIN_MS)
        assert re.fullmatch(r"no scheduler answers on this bus; as of [\d:]+", await said.inner_text())
        assert await rows.count() == 5  # what was known last
        other = await ground.stack.beside(page, f"{ground.stack.address}#jobs")
        empty = other.locator(".empty")
        await empty.get_by_text("No scheduler on this bus").wait_for(timeout=WITHIN_MS)
        said_how = await empty.inner_text()
        assert "turnbuckle up --cluster 4x2" in said_how
        assert "turnbuckle run scheduler" in said_how
        assert "turnbuckle run runner" in said_how
    finally:
        await ground.scheduler.start()
    await other.locator("canvas").wait_for(timeout=WITHIN_MS)
    await said.wait_for(state="hidden", timeout=WITHIN_MS)
    await page.context.close()


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["light-1280", "dark-390"])
async def test_is_readable(ground: Ground, scheme: str, viewport: dict[str, int]) -> None:
    """Nothing is wider than the window, no text is smaller than 11 px or fainter than 4.5 to 1 (WCAG AA)."""
    page = await ground.stack.page(viewport=viewport, color_scheme=scheme)
    await page.click("#tab-jobs")
    await page.get_by_role("link", name="bert", exact=True).click()
    await page.locator("#job-history li time").first.wait_for(timeout=WITHIN_MS)
    await page.get_by_role("region", name="rack-1-up", exact=True).wait_for(timeout=WITHIN_MS)
    assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert await page.evaluate(FAINT_OR_SMALL) == []
    await page.close()
