"""The outbox: order, retries, and what happens when it is full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from services._runtime.bus.api import BusUnavailableError
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.outbox import DurableEvent, Outbox
from tests.support.deadline import until


def fact(number: int) -> DurableEvent:
    return DurableEvent("s", b"", str(number))


@asynccontextmanager
async def outbox(
    send: Callable[[DurableEvent], Awaitable[None]], limit: int = 10
) -> AsyncIterator[tuple[Outbox, Dispatch]]:
    dispatch = Dispatch()
    made = Outbox(send, dispatch, limit=limit)
    task = asyncio.create_task(made.run())
    yield made, dispatch
    task.cancel()
    await asyncio.wait({task})


async def test_a_failing_fact_is_not_overtaken() -> None:
    sent: list[str] = []
    failures = [3]

    async def send(item: DurableEvent) -> None:
        if item.message_id == "1" and failures[0]:
            failures[0] -= 1
            raise BusUnavailableError("not now")
        sent.append(item.message_id)

    async with outbox(send) as (box, dispatch):
        for number in range(4):
            box.put(fact(number))
        assert await box.wait_empty(5)

    assert sent == ["0", "1", "2", "3"]
    assert dispatch.counts["events_published"] == 4


async def test_overflow_drops_the_oldest() -> None:
    """Also where the oldest is just under way: nothing else is lost for it."""
    sent: list[str] = []
    under_way, release = asyncio.Event(), asyncio.Event()

    async def send(item: DurableEvent) -> None:
        under_way.set()
        await release.wait()
        sent.append(item.message_id)

    async with outbox(send, limit=3) as (box, dispatch):
        box.put(fact(0))
        await under_way.wait()
        for number in range(1, 6):
            box.put(fact(number))
        assert len(box) == 3
        release.set()
        assert await box.wait_empty(5)

    assert sent == ["0", "3", "4", "5"]
    assert dispatch.counts["events_dropped"] == 3


async def test_reconnection_ends_the_back_off() -> None:
    attempts = [0]
    online = [False]

    async def send(_item: DurableEvent) -> None:
        attempts[0] += 1
        if not online[0]:
            raise BusUnavailableError("away")

    async with outbox(send) as (box, _):
        box.put(fact(0))
        assert not await box.wait_empty(0.2)
        online[0] = True
        box.retry_now()
        await until(lambda: not len(box))
