"""`turnbuckle console` in a real browser, beside a real `turnbuckle up --simulate --demo`.

What no simulated host has, a reconciler and an advisor, is told by the test on the same bus.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from schemas.codec import encode, to_plain
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.network import RouteEvent, RouteKind
from schemas.reasons import Reason, sentence
from schemas.subjects import CONTAINER_EVENTS, ROUTE_EVENTS
from services.cli.toolkit.supervisor import free_port
from tests.support.chromium import browser, find_chromium
from tests.support.console_lab import (
    CLI,
    DESKTOP,
    HOSTILE,
    WITHIN_MS,
    Stack,
    connect,
    console_url,
    end,
    environment,
    launch,
    tell_of_a_job,
    tell_of_a_network,
    vectors,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]

PHONE = {"width": 390, "height": 844}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    find_chromium()
    nats = f"nats://127.0.0.1:{(port := free_port())}"
    store = tmp_path_factory.mktemp("up")
    up = launch("up", "--simulate", "--demo", "--no-live", "--port", str(port), "--store", str(store))
    console = None
    try:
        bus = await connect(nats)
        await tell_of_a_network(bus)
        await tell_of_a_job(bus)
        console = launch("console", "--port", "0", "--json", "--server", nats)
        url = await console_url(console)
        async with browser() as chromium:
            yield Stack(bus, nats, url, chromium)
        code, errors = end(console)
        assert (code, errors) == (0, "")
        await bus.close(5.0)
    finally:
        for process in (console, up):
            if process is not None and process.poll() is None:
                end(process)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_to_complain_of(stack: Stack) -> AsyncIterator[None]:
    """No error in any page, no breach of the content policy, no request to anybody else."""
    stack.complaints.clear()
    yield
    assert stack.complaints == []


def numbers(text: str) -> tuple[float, float]:
    used, limit = re.findall(r"[\d.]+", text)
    return float(used), float(limit)


async def test_limits_and_usage_move(stack: Stack) -> None:
    page = await stack.page()
    card = page.locator('[data-app="demo"]')
    await card.locator("tbody tr").nth(4).wait_for(timeout=WITHIN_MS)
    cells = card.locator("tbody tr td:nth-child(4)")

    async def readings() -> list[str]:
        return [str(text) for text in await cells.all_inner_texts()]

    seen = {tuple(await readings())}
    deadline = time.monotonic() + 30
    while len(seen) < 4 and time.monotonic() < deadline:
        await page.wait_for_timeout(250)
        seen.add(tuple(await readings()))
    assert len(seen) >= 4, "usage and limits do not change"
    limits = [limit for _, limit in map(numbers, await readings())]
    assert len(limits) == 5
    # The demo's CPU limit is 0.75 cores; five figures are each rounded to 0.01.
    assert 0 < sum(limits) <= 0.75 + 5 * 0.005 + 0.001
    assert await card.locator(".chart canvas").count() == 2
    label = await card.locator(".chart").first.get_attribute("aria-label")
    assert re.fullmatch(r"CPU, cores: used [\d.]+, limits in force [\d.]+, application's limit 0\.75", label)
    assert "of 0.75 cores" in await card.locator(".pool-text").first.inner_text()
    await page.close()


async def test_events_come_as_they_happen_and_stay_text(stack: Stack) -> None:
    page = await stack.page()
    event = ContainerEvent(
        change=ContainerChange.REJECTED,
        app="demo",
        node="elsewhere",
        container="x-0123456789ab",
        name="x",
        source=ContainerSource.DOCKER,
        time_ns=time.time_ns(),
        incarnation=1,
        reason=HOSTILE,
    )
    subject = CONTAINER_EVENTS.subject(stack.bus.root, app="demo", node="elsewhere")
    stack.bus.publish_event(subject, event, message_id="console-hostile")
    line = page.locator(".event", has_text="elsewhere")
    await line.wait_for(timeout=WITHIN_MS)
    assert await line.locator("p").inner_text() == HOSTILE
    assert await page.locator("img").count() == 0
    await page.get_by_role("button", name="Containers").click()
    await line.wait_for(state="detached", timeout=WITHIN_MS)
    route = RouteEvent(
        kind=RouteKind.OVERRIDE,
        node="gpu-01",
        incarnation=1,
        seq=1,
        source="fast_path",
        time_ns=time.time_ns(),
        destination="10.0.0.2",
        before=("up0", "up1"),
        after=("up1",),
        latency_us=910,
        reason="BFD went down",
    )
    stack.bus.publish_event(ROUTE_EVENTS.subject(stack.bus.root, node="gpu-01"), route, message_id="console-route")
    line = page.locator(".event.route", has_text="override")
    await line.wait_for(timeout=WITHIN_MS)
    assert await line.locator("p").inner_text() == "up0 up1 → up1. In 910 us. BFD went down"
    await page.close()


async def test_network_by_keyboard(stack: Stack) -> None:
    page = await stack.page()
    await page.focus("#tab-applications")
    await page.keyboard.press("ArrowRight")
    picture = page.get_by_role("img", name=re.compile("Topology"))
    await picture.wait_for(timeout=WITHIN_MS)
    await page.locator('[data-node="gpu-02"]').wait_for(timeout=WITHIN_MS)
    label = await picture.get_attribute("aria-label")
    assert label == "Topology. gpu-01: up0 overridden, up1 up; gpu-02: up0 up, up1 up"
    host = page.locator('[data-node="gpu-01"]')
    assert "disagree" in await host.locator("tbody tr").first.inner_text()
    await host.locator("summary").focus()
    await page.keyboard.press("Enter")
    row = host.locator("details tbody tr")
    await row.wait_for(timeout=WITHIN_MS)
    assert (await row.inner_text()).split("\t")[1:5] == ["02:00:00:00:00:07", "10.0.0.2", "100", "in hardware"]
    await page.close()


async def test_jobs_show_the_front(stack: Stack) -> None:
    page = await stack.page()
    await page.get_by_role("tab", name="Jobs").click()
    await page.locator(".pareto-plot").wait_for(timeout=WITHIN_MS)
    label = await page.locator(".pareto-plot").get_attribute("aria-label")
    assert label == "Time against cost of 3 configurations of resnet; on the front: 2 x fast; 2 x cheap"
    assert await page.locator("circle.pareto").count() == 2
    first = (await page.locator("tbody tr").first.inner_text()).replace("\n", " ")
    assert "10 min" in first
    assert "$3.00" in first
    await page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["1280", "390"])
async def test_is_readable(stack: Stack, scheme: str, viewport: dict[str, int]) -> None:
    """Nothing is wider than the window, no text is smaller than 11 px or fainter than 4.5 to 1 (WCAG AA)."""
    page = await stack.page(viewport=viewport, color_scheme=scheme)
    await page.locator('[data-app="demo"] tbody tr').first.wait_for(timeout=WITHIN_MS)
    for tab in ("applications", "network", "jobs", "events"):
        await page.click(f"#tab-{tab}")
        await page.locator("#panel .card, #panel .feed").first.wait_for(timeout=WITHIN_MS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert await page.evaluate(FAINT_OR_SMALL) == []
    await page.close()


FAINT_OR_SMALL = """() => {
  const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("header *, #panel *, #feed *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim() !== "");
    if (!own || element.closest("svg, canvas") || element.getClientRects().length === 0) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(channels(style.color)), light(ground(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5 || parseFloat(style.fontSize) < 11) {
      bad.push(`${element.textContent.slice(0, 30)}: ${contrast.toFixed(2)}, ${style.fontSize}`);
    }
  }
  return [...new Set(bad)];
}"""


async def test_the_page_reads_messages_as_we_write_them(stack: Stack) -> None:
    page = await stack.page()
    for message in vectors():
        read = await page.evaluate(
            """async (bytes) => {
              const { decode } = await import("/assets/decode.js");
              const message = decode(new Uint8Array(bytes));
              const row = (at) => Object.entries(message.columns).map(([name, values]) => [name, values[at]]);
              const rows = message.keys.map((container, at) => ({ container, ...Object.fromEntries(row(at)) }));
              return { type: message.type, app: message.app, rows };
            }""",
            list(encode(message)),
        )
        wanted = to_plain(message)
        assert read == {name: wanted[name] for name in ("type", "app", "rows")}
    await page.close()


async def test_the_page_refuses_what_is_no_message(stack: Stack) -> None:
    page = await stack.page()
    good = encode(vectors()[0])
    for data in (b"", b"\x01", b"\x80", b"{}", good[:-1], good.replace(b"used_us", b"used_ux")):
        refused = await page.evaluate(
            """async (bytes) => {
              const { decode } = await import("/assets/decode.js");
              try { decode(new Uint8Array(bytes)); return false; } catch { return true; }
            }""",
            list(data),
        )
        assert refused, data[:40]
    await page.close()


async def test_reasons_read_as_in_the_terminal(stack: Stack) -> None:
    page = await stack.page()
    for reason in (*Reason, 99):
        for resource in ("cpu", "memory"):
            said = await page.evaluate(
                "async (a) => (await import('/assets/decode.js')).sentence(...a)", [resource, reason, 123_456.0, -1.0]
            )
            assert said == sentence(resource, reason, 123_456.0, -1.0)
    await page.close()


async def test_frames_are_cut_wherever_the_network_cut_them(stack: Stack) -> None:
    page = await stack.page()
    lengths = await page.evaluate(
        """async () => {
          const { Frames } = await import("/assets/decode.js");
          const stream = new Uint8Array([0, 0, 0, 2, 7, 7, 0, 0, 0, 0, 0, 0, 0, 1, 9]);
          return [1, 2, 3, 5, 15].map((size) => {
            const frames = new Frames();
            const found = [];
            for (let at = 0; at < stream.length; at += size) found.push(...frames.push(stream.slice(at, at + size)));
            return found.map((frame) => [...frame]);
          });
        }"""
    )
    assert lengths == [[[7, 7], [], [9]]] * 5
    await page.close()


async def test_without_the_key_it_says_what_to_do(stack: Stack) -> None:
    page = await stack.chromium.new_page()
    await page.goto(stack.url.partition("#")[0])
    await page.wait_for_selector("#link.refused", timeout=WITHIN_MS)
    assert "address that turnbuckle console printed" in await page.inner_text("#link")
    assert await page.locator("[data-app]").count() == 0
    await page.close()


async def test_a_page_survives_the_console(stack: Stack) -> None:
    """It says that the console has ended, whose end is clean with the page still open."""
    console = launch("console", "--port", "0", "--json", "--server", stack.nats_url)
    page = await stack.chromium.new_page()
    await page.clock.install()
    await page.goto(await console_url(console))
    rows = page.locator('[data-app="demo"] tbody tr')
    await rows.nth(4).wait_for(timeout=WITHIN_MS)
    assert await asyncio.to_thread(end, console) == (0, "")
    await page.wait_for_selector("#link.lost", timeout=WITHIN_MS)
    # Long after a silent node would be gone: what was heard last is still there.
    await page.clock.run_for(5_000)
    assert await rows.count() == 5
    await page.close()


async def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [*CLI, *arguments], env=environment(), text=True, capture_output=True, timeout=60, check=False
    )


async def test_without_nats_it_says_what_to_do() -> None:
    done = await run_cli("console", "--server", f"nats://127.0.0.1:{free_port()}")
    assert done.returncode == 69
    assert "turnbuckle up" in done.stderr
    assert done.stdout == ""


async def test_help_shows_examples() -> None:
    done = await run_cli("console", "--help")
    assert done.returncode == 0
    assert "turnbuckle console --open" in done.stdout


async def test_a_taken_port_is_named(stack: Stack) -> None:
    port = re.search(r":(\d+)/", stack.url)
    assert port is not None
    done = await run_cli("console", "--port", port[1], "--server", stack.nats_url)
    assert done.returncode == 69
    assert f"port {port[1]} of 127.0.0.1 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
