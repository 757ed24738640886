"""Facts: stored, in order, once; delivered until handled."""

from __future__ import annotations

import asyncio

import pytest

from schemas.streams import ROUTE_STREAM
from schemas.subjects import ROUTE_EVENTS
from services._runtime.bus.api import Bus, BusError, BusUnavailableError, Delivery, Replay
from tests.support.bus_lab import CONTAINER_STREAM, BusLab, container_event, event_subject, number_of
from tests.support.deadline import until


async def follow(bus: Bus, got: list[int]) -> Replay:
    async def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))

    return await bus.replay(CONTAINER_STREAM, handle)


def publish(bus: Bus, root: str, number: int, message_id: str | None = None) -> None:
    bus.publish_event(event_subject(root), container_event(number), message_id=message_id or f"event-{number}")


async def test_facts_are_delivered_in_order_from_the_first(lab: BusLab) -> None:
    """A consumer that comes later sees all of them, and a plain subscriber those of its time."""
    bus = await lab.bus()
    live: list[int] = []
    await bus.subscribe(event_subject(lab.root), lambda delivery: live.append(number_of(delivery.message)))
    await bus.flush(60)
    for number in range(40):
        publish(bus, lab.root, number)
    await bus.flush(60)
    got: list[int] = []
    await follow(await lab.bus(), got)
    await until(lambda: len(got) == 40)

    assert got == list(range(40))
    assert live == list(range(40))
    assert bus.counters["events_published"] == 40
    assert bus.counters["events_pending"] == 0


async def test_facts_are_deduplicated(lab: BusLab) -> None:
    """The same message id is stored once."""
    bus = await lab.bus()
    got: list[int] = []
    await follow(bus, got)

    for number in (1, 2, 1, 3):
        publish(bus, lab.root, number)
    publish(bus, lab.root, 9, message_id="event-2")
    publish(bus, lab.root, 4)
    await until(lambda: 4 in got)

    assert got == [1, 2, 3, 4]


async def test_a_failed_fact_comes_again(lab: BusLab) -> None:
    """A handler that raises gets the message again, and the others meanwhile."""
    bus = await lab.bus()
    got: list[int] = []

    async def moody(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))
        if got.count(1) < 3 and got[-1] == 1:
            raise ValueError("not yet")

    await bus.replay(CONTAINER_STREAM, moody)
    for number in (1, 2, 3):
        publish(bus, lab.root, number)
    await until(lambda: got.count(1) == 3 and {2, 3} <= set(got))

    assert (got.count(2), got.count(3)) == (1, 1)
    assert bus.counters["handler_errors"] == 2


async def test_poison_is_counted_and_passed_over(lab: BusLab) -> None:
    """Garbage in a stream reaches no handler and stops nothing."""
    bus = await lab.bus()
    got: list[int] = []
    await follow(bus, got)

    await lab.publish_raw(event_subject(lab.root).text, b"\xff\xff\xff")
    publish(bus, lab.root, 5)
    await until(lambda: got == [5])

    assert bus.counters["undecodable_malformed"] == 1


async def test_stop_finishes_the_message_under_way(lab: BusLab) -> None:
    """And does not wait for more."""
    bus = await lab.bus()
    begun, release = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    async def slow(delivery: Delivery) -> None:
        begun.set()
        await release.wait()
        done.append(number_of(delivery.message))

    subscription = await bus.replay(CONTAINER_STREAM, slow)
    publish(bus, lab.root, 1)
    await begun.wait()
    stop = asyncio.create_task(subscription.stop())
    release.set()
    await stop

    assert done == [1]


async def test_whether_a_fact_is_stored(lab: BusLab) -> None:
    """By its subject, also for those that did not send it; without a server an error, and no guess."""
    bus, other = await lab.bus(), await lab.bus()
    stored, missing = (ROUTE_EVENTS.subject(lab.root, node=node) for node in ("n1", "n2"))
    bus.publish_event(stored, container_event(1), message_id="1")
    await bus.flush(60)

    assert await other.is_stored(ROUTE_STREAM, stored)
    assert not await other.is_stored(ROUTE_STREAM, missing)
    with pytest.raises(BusError, match="under one subject"):  # which it is not asked for
        await other.is_stored(CONTAINER_STREAM, event_subject(lab.root))
    await lab.stop_server()
    await until(lambda: not other.connected)
    with pytest.raises(BusUnavailableError):
        await other.is_stored(ROUTE_STREAM, stored)
