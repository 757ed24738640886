"""`turnbuckle console` in a real browser, beside a real `turnbuckle up --simulate --demo`.

What no simulated host has, a reconciler and an advisor, is told by the test on the same bus.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.network import RouteEvent, RouteKind
from schemas.subjects import CONTAINER_EVENTS, ROUTE_EVENTS
from services.cli.nats.certificates import make_authority, make_server
from services.cli.toolkit.supervisor import free_port
from services.console.messages import console_message
from tests.support.chromium import browser, find_chromium
from tests.support.console_lab import (
    CLI,
    DESKTOP,
    FAINT_OR_SMALL,
    HOSTILE,
    PHONE,
    WITHIN_MS,
    Stack,
    connect,
    console_url,
    end,
    environment,
    launch,
    tell_of_a_job,
    tell_of_a_network,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    find_chromium()
    nats = f"nats://127.0.0.1:{(port := free_port())}"
    store = tmp_path_factory.mktemp("up")
    settings = {"ALLOCATOR__SAVINGS_EVERY_S": "1"}
    up = launch("up", "--simulate", "--demo", "--no-live", "--port", str(port), "--store", str(store), **settings)
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
    deadline = time.monotonic() + 60
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
    await page.keyboard.press("ArrowRight")
    label = "Topology. gpu-01: up0 overridden, up1 up; gpu-02: up0 up, up1 up"
    await page.get_by_role("img", name=label, exact=True).wait_for(timeout=WITHIN_MS)
    await page.locator('[data-node="gpu-02"]').wait_for(timeout=WITHIN_MS)
    host = page.locator('[data-node="gpu-01"]')
    assert "disagree" in await host.locator("tbody tr").first.inner_text()
    await host.locator("summary").focus()
    await page.keyboard.press("Enter")
    row = host.locator("details tbody tr")
    await row.wait_for(timeout=WITHIN_MS)
    assert (await row.inner_text()).split("\t")[1:5] == ["02:00:00:00:00:07", "10.0.0.2", "100", "in hardware"]
    await page.close()


async def test_predictions_show_the_front(stack: Stack) -> None:
    page = await stack.page()
    await page.get_by_role("tab", name="Predictions").click()
    await page.locator(".pareto-plot").wait_for(timeout=WITHIN_MS)
    label = await page.locator(".pareto-plot").get_attribute("aria-label")
    assert label == "Time against cost of 3 configurations of resnet; on the front: 2 x fast; 2 x cheap"
    assert await page.locator("circle.pareto").count() == 2
    first = (await page.locator("tbody tr").first.inner_text()).replace("\n", " ")
    assert "10 min" in first
    assert "$3.00" in first
    await page.close()


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["light-1280", "dark-390"])
async def test_is_readable(stack: Stack, scheme: str, viewport: dict[str, int]) -> None:
    """Nothing is wider than the window, no text is smaller than 11 px or fainter than 4.5 to 1 (WCAG AA)."""
    page = await stack.page(viewport=viewport, color_scheme=scheme)
    await page.locator('[data-app="demo"] tbody tr').first.wait_for(timeout=WITHIN_MS)
    for tab in ("applications", "containers", "network", "jobs", "predictions", "events"):
        await page.click(f"#tab-{tab}")
        await page.locator("#panel :is(.card, .feed, .empty)").first.wait_for(timeout=WITHIN_MS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert await page.evaluate(FAINT_OR_SMALL) == []
    await page.click("#tab-containers")
    await page.locator("tbody th a").first.click()
    await page.locator(".explained .heading").first.wait_for(timeout=WITHIN_MS)
    assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert await page.evaluate(FAINT_OR_SMALL) == []
    await page.close()


async def test_the_page_reads_messages_as_we_write_them(stack: Stack) -> None:
    page = await stack.page()
    values = np.array([[-1.0, 1.5], [float("nan"), float(1 << 40)]], dtype=np.float32)
    message = console_message("Rows", app="größe", containers="a\nb", values=values.tobytes())
    read = await page.evaluate(
        """async (bytes) => {
          const { decode, floats } = await import("/assets/decode.js");
          const message = decode(new Uint8Array(bytes));
          return { ...message, values: [...floats(message.values, 2, 2)].map(String) };
        }""",
        list(message),
    )
    assert read == {
        "type": "console.Rows",
        "app": "größe",
        "containers": "a\nb",
        "values": ["-1", "1.5", "NaN", str(1 << 40)],
    }
    await page.close()


async def test_the_page_refuses_what_is_no_message(stack: Stack) -> None:
    page = await stack.page()
    good = console_message("Rows", app="shop", containers="a", values=bytes(24))
    for data in (b"", b"\x01", b"\x80", b"{}", good[:-1]):
        refused = await page.evaluate(
            """async (bytes) => {
              const { decode } = await import("/assets/decode.js");
              try { decode(new Uint8Array(bytes)); return false; } catch { return true; }
            }""",
            list(data),
        )
        assert refused, data[:40]
    assert await page.evaluate(
        """async () => {
          const { floats } = await import("/assets/decode.js");
          return [new Uint8Array(20), "", null].map((data) => {
            try { floats(data, 6, 1); return false; } catch { return true; }
          });
        }"""
    ) == [True, True, True]
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
    page.set_default_timeout(WITHIN_MS)
    await page.goto(stack.url.partition("#")[0])
    await page.wait_for_selector("#link.refused", timeout=WITHIN_MS)
    assert "address that turnbuckle console printed" in await page.inner_text("#link")
    assert await page.locator("[data-app]").count() == 0
    await page.fill("#key", "not-the-key")
    await page.keyboard.press("Enter")
    await page.locator(".trouble", has_text="That is not its key").wait_for(timeout=WITHIN_MS)
    await page.fill("#key", stack.url.partition("#key=")[2])
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#link.live", timeout=WITHIN_MS)
    await page.locator('[data-app="demo"]').wait_for(timeout=WITHIN_MS)
    # The browser has a cookie now, which no script reads, and the address holds no key.
    assert await page.evaluate("document.cookie") == ""
    [cookie] = await page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    await page.reload()
    await page.wait_for_selector("#link.live", timeout=WITHIN_MS)
    assert page.url == stack.address
    await page.close()


async def test_a_page_survives_the_console(stack: Stack) -> None:
    """It says that the console has ended, whose end is clean with the page still open."""
    console = launch("console", "--port", "0", "--json", "--server", stack.nats_url)
    page = await stack.chromium.new_page()
    page.set_default_timeout(WITHIN_MS)
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


async def test_a_link_shows_what_was_shown(stack: Stack) -> None:
    page = await stack.page(permissions=["clipboard-read", "clipboard-write"])
    await page.click("#tab-containers")
    await page.fill("#search", "demo")
    await page.get_by_role("button", name="throttled").click()
    await page.click("#copy")
    await page.get_by_role("button", name="Copied").wait_for(timeout=WITHIN_MS)
    link = await page.evaluate("navigator.clipboard.readText()")
    assert link == f"{stack.address}#containers?search=demo&sort=-throttled"
    other = await stack.beside(page, link)
    assert await other.input_value("#search") == "demo"
    await other.locator('th.throttled[aria-sort="descending"]').wait_for(timeout=WITHIN_MS)
    # An application, and a container; and back, as the browser does it.
    await other.get_by_role("link", name="demo", exact=True).first.click()
    await other.locator('[data-app="demo"] tbody tr').first.wait_for(timeout=WITHIN_MS)
    await other.locator('[data-app="demo"] tbody th a').first.click()
    await other.locator("[data-container]").wait_for(timeout=WITHIN_MS)
    third = await stack.beside(page, other.url)
    key = await other.locator("[data-container]").get_attribute("data-container")
    assert await third.locator("[data-container]").get_attribute("data-container") == key
    await other.go_back()
    await other.locator('[data-app="demo"]').wait_for(timeout=WITHIN_MS)
    await page.context.close()


async def test_a_container_explains_itself_as_the_command_does(stack: Stack) -> None:
    page = await stack.page()
    await page.locator('[data-app="demo"] tbody th a').first.click()
    await page.locator(".explained .decision").first.wait_for(timeout=WITHIN_MS)
    said = [str(text) for text in await page.locator(".explained .decision span").all_text_contents()]
    key = str(await page.locator("[data-container]").get_attribute("data-container"))
    done = await run_cli("explain", "demo", "--container", key, "--last", "1000", "--server", stack.nats_url)
    printed = " ".join(done.stdout.split())
    assert 0 < len(said) <= 10  # five of each resource
    assert [text for text in said if " ".join(text.split()) not in printed] == []
    assert "Memory in the last 24h" in await page.locator(".explained").inner_text()
    happened = page.get_by_role("region", name="Events of the last hour")
    assert "started" in await happened.locator(".event").last.inner_text()
    await page.close()


async def test_what_limits_saved_stands_with_the_application(stack: Stack) -> None:
    page = await stack.page()
    saved = page.locator('[data-app="demo"] .savings')
    deadline, again = time.monotonic() + 60, time.monotonic() + 10
    while not await saved.is_visible() and time.monotonic() < deadline:
        if time.monotonic() > again:  # nothing was published yet when it asked; by itself it asks once a minute
            await page.reload()
            again = time.monotonic() + 10
        await page.wait_for_timeout(250)
    said = await saved.inner_text()
    assert re.fullmatch(
        r"Limits saved -?[\d.]+ core-hours and -?[\d.]+ GiB-hours in 7 days; throttled [\d.]+ % of periods\.", said
    )
    await page.close()


async def test_the_past_is_there_after_a_reload(stack: Stack) -> None:
    page = await stack.page()
    await page.wait_for_function(
        """async () => {
          const { decode, doubles } = await import("/assets/decode.js");
          const answer = await fetch("/history?app=demo");
          return doubles(decode(new Uint8Array(await answer.arrayBuffer())).times_s).length >= 30;
        }""",
        timeout=60_000,
    )
    await page.reload()
    # By itself it would have a point a second: within 25 there can be no thirty.
    await page.wait_for_function(
        "() => (document.querySelector('path.used')?.getAttribute('d') ?? '').split('L').length >= 30", timeout=25_000
    )
    await page.locator(".toolbar", has_text="data since").wait_for(timeout=WITHIN_MS)
    await page.close()


async def test_charts_zoom_by_button_and_by_hand(stack: Stack) -> None:
    page = await stack.page()
    await page.get_by_role("button", name="1 min").click()
    await page.wait_for_url(re.compile(r"#applications[?]zoom=60$"), timeout=WITHIN_MS)
    over = page.locator('[data-app="demo"] .u-over').first
    await over.wait_for(timeout=WITHIN_MS)
    box = await over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.9, middle, steps=5)
    await page.mouse.up()
    await page.wait_for_url(re.compile(r"zoom=\d+\.\d-\d+\.\d$"), timeout=WITHIN_MS)
    begin, end_s = map(float, page.url.partition("zoom=")[2].split("-"))
    assert 1 <= end_s - begin <= 30  # four tenths of what was shown, which was a minute at most
    await page.get_by_title("Back to now").click()
    await page.wait_for_url(re.compile(r"#applications[?]zoom=60$"), timeout=WITHIN_MS)
    await page.close()


async def test_a_page_that_nobody_sees_does_nothing(stack: Stack) -> None:
    page = await stack.page()
    await page.locator('[data-app="demo"] tbody tr').first.wait_for(timeout=WITHIN_MS)
    await page.evaluate(
        """() => {
          window.hidden = true;
          Object.defineProperty(document, "hidden", { get: () => window.hidden });
          document.dispatchEvent(new Event("visibilitychange"));
          window.drawn = 0;
          new MutationObserver(() => { window.drawn += 1; })
            .observe(document.getElementById("panel"), { subtree: true, childList: true, attributes: true });
        }"""
    )
    await page.wait_for_selector("#link.connecting", timeout=WITHIN_MS)  # the stream is closed
    assert await page.evaluate("window.drawn") == 0
    await page.evaluate("window.hidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for_selector("#link.live", timeout=WITHIN_MS)
    await page.wait_for_function("() => window.drawn > 0", timeout=WITHIN_MS)
    await page.close()


async def test_a_team_reads_with_a_key_of_a_file(stack: Stack, tmp_path: Path) -> None:
    """By TLS, beyond the loopback: this address is the loopback's, but the server listens at all."""
    key = "a-key-for-the-team-of-length"
    (tmp_path / "console.key").write_text(key + "\n")
    now = dt.datetime.now(dt.UTC)
    pair = make_server(make_authority(now), ["127.0.0.1"], now)
    (tmp_path / "console.crt").write_bytes(pair.certificate)
    (tmp_path / "console.pem").write_bytes(pair.key)
    options = {"--key-file": "key", "--tls-cert": "crt", "--tls-key": "pem"}
    files = [part for name, suffix in options.items() for part in (name, str(tmp_path / f"console.{suffix}"))]
    console = launch("console", "--listen", "0.0.0.0:0", "--json", "--server", stack.nats_url, *files)
    try:
        url = await console_url(console)
        assert "key=" not in url
        port = url.rpartition(":")[2]
        context = await stack.chromium.new_context(ignore_https_errors=True)
        page = await context.new_page()
        page.set_default_timeout(WITHIN_MS)
        await page.goto(f"https://127.0.0.1:{port}#containers?search=demo")
        await page.fill("#key", key)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#link.live", timeout=WITHIN_MS)
        await page.locator("tbody tr").nth(4).wait_for(timeout=WITHIN_MS)
        [cookie] = await context.cookies()
        assert cookie["secure"]
        await context.close()
    finally:
        code, errors = await asyncio.to_thread(end, console)
    assert code == 0
    assert key not in errors


async def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [*CLI, *arguments], env=environment(), text=True, capture_output=True, timeout=60, check=False
    )


async def test_without_nats_it_says_what_to_do() -> None:
    done = await run_cli("console", "--server", f"nats://127.0.0.1:{free_port()}")
    assert done.returncode == 69
    assert "turnbuckle up" in done.stderr
    assert done.stdout == ""


async def test_a_taken_port_is_named(stack: Stack) -> None:
    port = re.search(r":(\d+)/", stack.url)
    assert port is not None
    done = await run_cli("console", "--port", port[1], "--server", stack.nats_url)
    assert done.returncode == 69
    assert f"port {port[1]} of 127.0.0.1 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr
