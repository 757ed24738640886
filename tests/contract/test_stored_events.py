"""Stored events read without a consumer: what a stream holds, in its order."""

from __future__ import annotations

import pytest

from schemas.codec import encode
from schemas.subjects import CONTAINER_EVENTS
from services._runtime.bus.api import Bus, BusUnavailableError
from tests.support.bus_lab import CONTAINER_STREAM, BusLab, container_event, event_subject, number_of
from tests.support.cluster_lab import poll
from tests.support.deadline import until


async def store(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        bus.publish_event(event_subject(bus.root), container_event(number), message_id=f"event-{number}")
    await bus.flush(60)


async def stored(bus: Bus, app: str = "shop") -> list[int]:
    found: list[int] = []
    pattern = CONTAINER_EVENTS.pattern(bus.root, app=app)
    await bus.read_stored(CONTAINER_STREAM, pattern, lambda delivery: found.append(number_of(delivery.message)))
    return found


async def test_what_is_stored_is_read_in_order_each_time_anew(lab: BusLab) -> None:
    bus, other = await lab.bus(), await lab.bus()
    assert await stored(other) == []

    await store(bus, *range(40))
    assert await stored(other) == list(range(40))
    await store(bus, 40)
    assert await stored(other) == list(range(41))
    assert await stored(other, app="other") == []


async def test_garbage_and_another_hosts_name_are_counted_and_passed_over(lab: BusLab) -> None:
    bus, other = await lab.bus(), await lab.bus()
    subject = event_subject(lab.root).text
    forged = container_event(1).model_copy(update={"node": "n2"})
    for data in (b"\xff garbage", encode(forged), encode(container_event(2))):
        await lab.publish_raw(subject, data)

    async def are_stored() -> bool:  # core NATS acknowledges no publish
        return await stored(other) == [2]

    await poll(are_stored, what="what was published raw")
    await store(bus, 3)  # behind them

    assert await stored(bus) == [2, 3]
    counted = {name: count for name, count in bus.counters.items() if name.startswith("undecodable_")}
    assert counted.pop("undecodable_subject_mismatch") == 1
    assert list(counted.values()) == [1]


async def test_without_a_server_it_is_refused_and_read_once_that_is_back(lab: BusLab) -> None:
    bus = await lab.bus()
    await store(bus, 1, 2)

    await lab.stop_server()
    await until(lambda: not bus.connected)
    with pytest.raises(BusUnavailableError):
        await stored(bus)
    reconnects = bus.counters["reconnects"]
    await lab.start_server()
    await until(lambda: bus.counters["reconnects"] > reconnects)

    assert await stored(bus) == [1, 2]


async def test_what_a_handler_raises_is_counted_and_later_events_are_handled(lab: BusLab) -> None:
    """As for a subscription: what is stored for days would else end a service at each of its starts."""
    bus = await lab.bus()
    await store(bus, 1, 2, 3)
    got: list[int] = []

    def take(number: int) -> None:
        got.append(number)
        if number == 2:
            raise ValueError(number)

    await bus.read_stored(CONTAINER_STREAM, event_subject(lab.root), lambda it: take(number_of(it.message)))
    assert got == [1, 2, 3]
    assert bus.counters["handler_errors"] == 1
    assert await stored(bus) == [1, 2, 3]
