"""The console's page of trainings in a real browser: bars of each device, steps beside the plan, drift, the end."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
import pytest_asyncio

from schemas.subjects import STEPS, TRAINING_EVENTS
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
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
from tests.support.trainer_plans import plan_of
from tests.support.training_reports import event, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20
PLAN = plan_of([96, 32], [2, 1], [3, 1])
MEMORY = [(64 * MIB, 128 * MIB, 96 * MIB), (64 * MIB, 128 * MIB, 200 * MIB)]
"""Planned, allowed and measured, by rank: the second uses more than it may."""


def planned() -> TrainingEvent:
    devices = tuple(
        device.model_copy(update={"planned_bytes": expected, "allowed_bytes": allowed})
        for device, (expected, allowed, _) in zip(PLAN.devices, MEMORY, strict=True)
    )
    times = {"step_us": 20_000.0, "step_low_us": 12_000.0, "step_high_us": 40_000.0}
    return event(total=100, generation=2, plan=PLAN.model_copy(update={"devices": devices, **times}))


class Training:
    """One that goes on until it is left: steps of both ranks, several times a second."""

    def __init__(self, stack: Stack, job: str = "resnet") -> None:
        self.bus = stack.bus
        self.job = job
        self.training = uuid.uuid4().hex
        self.sequence = 0
        self._going: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.tell(planned())
        self._going = asyncio.create_task(self._go())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._going is not None
        self._going.cancel()
        await asyncio.wait({self._going})
        self.tell(event(TrainingChange.ENDED, exit_code=75, cause=f"rank 1 failed {HOSTILE}"))

    def tell(self, message: StepBatch | TrainingEvent, **changes: Any) -> None:
        whose = {"job": self.job, "node": "n1"}
        message = message.model_copy(update={**whose, "training": self.training, **changes})
        if isinstance(message, StepBatch):
            self.bus.publish(STEPS.subject("tb", **whose), message)
            return
        message = message.model_copy(update={"sequence": self.sequence})
        self.sequence += 1
        self.bus.publish_event(TRAINING_EVENTS.subject("tb", **whose), message, message_id=message.message_id)

    async def _go(self) -> None:
        for step in range(1_000_000):
            for rank, (_, _, measured) in enumerate(MEMORY):
                times = {"step_us": (39_100,) * 2, "memory_bytes": (measured,) * 2}
                self.tell(steps(rank=rank, step=(2 * step, 2 * step + 1), generation=2, **times))
            await asyncio.sleep(0.3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    find_chromium()
    async with open_cluster() as cluster:
        console = launch("console", "--port", "0", "--json", "--server", cluster.server.url)
        try:
            url = await console_url(console)
            async with browser() as chromium:
                yield Stack(cluster.bus, cluster.server.url, url, chromium)
        finally:
            assert await asyncio.to_thread(end, console) == (0, "")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_to_complain_of(stack: Stack) -> AsyncIterator[None]:
    """No error in any page, no breach of the content policy, no request to anybody else."""
    stack.complaints.clear()
    yield
    assert stack.complaints == []


async def test_where_nothing_trains_nothing_is_shown(stack: Stack) -> None:
    page = await stack.page()
    await page.get_by_role("tab", name="Jobs").wait_for(timeout=WITHIN_MS)
    assert not await page.locator("#tab-trainings").is_visible()
    await page.locator("#tab-jobs").click()
    await page.locator("#tab-jobs").press("ArrowRight")
    await page.wait_for_url(re.compile(r"#predictions$"), timeout=WITHIN_MS)
    linked = await stack.beside(page, f"{stack.address}#trainings")
    await linked.get_by_text("Nothing trains").wait_for(timeout=WITHIN_MS)
    await page.context.close()


async def test_devices_and_steps_beside_the_plan(stack: Stack) -> None:
    page = await stack.page()
    async with Training(stack) as training:
        await page.get_by_role("tab", name="Training").click(timeout=WITHIN_MS)
        card = page.get_by_role("region", name="Training resnet on n1", exact=True)
        # The plan is a durable event: steps may be shown a second before it, and one rank's before the other's.
        await card.get_by_text("200 MiB / 64 MiB / 128 MiB").wait_for(timeout=WITHIN_MS)
        facts = (await card.locator(".card-head .facts").inner_text()).split(" · ")
        assert (facts[0], facts[1], facts[3], facts[4]) == (
            "on n1",
            "attempt 2",
            "39.1 ms a step, planned 20 ms (12 ms \u2013 40 ms)",
            "128 samples on 2 devices, engine layered",
        )
        rows = [str(text).split("\t") for text in await card.locator("tbody tr").all_inner_texts()]
        assert [[cell for cell in row if cell] for row in rows] == [
            ["0", "96 in 2 micro-batches", "75 %", "96 MiB / 64 MiB / 128 MiB"],
            ["1", "32 in 1 micro-batch", "25 %", "200 MiB / 64 MiB / 128 MiB"],
        ]
        bars = card.locator("tbody progress")
        assert [await bars.nth(at).evaluate("(bar) => bar.value / bar.max") for at in range(4)] == [
            0.75,
            0.75,
            0.25,
            0.25,
        ]
        # 96 and, cut off, 200 of 128 MiB; planned are 64 of 128.
        assert await card.locator(".measured").get_attribute("width") == "75"
        assert await card.locator(".beyond").get_attribute("width") == "100"
        assert await card.locator(".planned").first.get_attribute("x") == "50"
        chart = card.get_by_role("img", name="Step time of resnet: measured 39.1 ms, planned 20 ms")
        await chart.locator("canvas").wait_for(timeout=WITHIN_MS)
        assert not await card.locator(".drift").is_visible()
        training.tell(event(TrainingChange.DRIFT, cause=f"each of the last 20 steps took more {HOSTILE}"), total=100)
        await card.locator(".drift", has_text="each of the last 20 steps took more <img").wait_for(timeout=WITHIN_MS)
    await card.locator(".end", has_text="Ended: exit code 75: rank 1 failed <img").wait_for(timeout=WITHIN_MS)
    assert await page.locator("#panel img").count() == 0
    await page.close()


async def test_a_page_that_opens_later_knows_the_plan_and_the_past(stack: Stack) -> None:
    async with Training(stack, "bert"):
        first = await stack.page()
        await first.get_by_role("tab", name="Training").click(timeout=WITHIN_MS)
        await (
            first.get_by_role("region", name="Training bert on n1", exact=True)
            .get_by_text("39.1 ms")
            .wait_for(timeout=WITHIN_MS)
        )
        page = await stack.beside(first, f"{stack.address}#trainings")
        card = page.get_by_role("region", name="Training bert on n1", exact=True)
        await (
            card.get_by_role("img", name="Step time of bert: measured 39.1 ms")
            .locator("canvas")
            .wait_for(timeout=WITHIN_MS)
        )
        await card.locator("tbody tr").nth(1).wait_for(timeout=WITHIN_MS)
        assert await card.locator("tbody tr").count() == 2
        await page.context.close()


@pytest.mark.parametrize(("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["light-1280", "dark-390"])
async def test_is_readable(stack: Stack, scheme: str, viewport: dict[str, int]) -> None:
    """Nothing is wider than the window, no text is smaller than 11 px or fainter than 4.5 to 1 (WCAG AA)."""
    async with Training(stack, "vgg") as training:
        training.tell(event(TrainingChange.DRIFT, cause="each of the last 20 steps took more"), total=100)
        page = await stack.page(viewport=viewport, color_scheme=scheme)
        await page.get_by_role("tab", name="Training").click(timeout=WITHIN_MS)
        card = page.get_by_role("region", name="Training vgg on n1", exact=True)
        await card.locator(".drift").wait_for(timeout=WITHIN_MS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert await page.evaluate(FAINT_OR_SMALL) == []
        await page.close()
