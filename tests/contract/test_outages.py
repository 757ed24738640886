"""The server goes away and comes back: what must resume, what must be kept, and what must be lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from schemas.message import Message
from schemas.queries import StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_STATE
from schemas.streams import APPS
from schemas.subjects import CFS, LIMIT_UPDATES
from services._runtime.bus.api import Bus, BusUnavailableError, Delivery
from tests.support.bus_lab import CONTAINER_STREAM, BusLab, container_event, event_subject, node_info, number_of
from tests.support.deadline import until


async def outage(lab: BusLab, *buses: Bus) -> None:
    await lab.stop_server()
    await until(lambda: not any(bus.connected for bus in buses))


async def recovery(lab: BusLab, *buses: Bus) -> None:
    await lab.start_server()
    await until(lambda: all(bus.connected for bus in buses))


async def test_observations_are_dropped_not_replayed(lab: BusLab) -> None:
    """Nothing that was published during the outage arrives after it."""
    sender, receiver = await lab.bus(), await lab.bus()
    got: list[int] = []
    await receiver.subscribe(CFS.pattern(lab.root), lambda delivery: got.append(number_of(delivery.message)))
    subject = CFS.subject(lab.root, app="shop", node="n1")

    await outage(lab, sender, receiver)
    for number in range(100):
        sender.publish(subject, node_info(number))
    await recovery(lab, sender, receiver)
    await receiver.flush(60)
    sender.publish(subject, node_info(1_000))
    await until(lambda: got)

    assert got == [1_000]
    assert sender.counters["dropped_disconnected"] == 100
    assert sender.counters["reconnects"] == 1


async def test_facts_wait_for_the_server(lab: BusLab) -> None:
    """Those of the outage arrive after it, in order. One whose acknowledgement was cut off may come twice."""
    sender, receiver = await lab.bus(), await lab.bus()
    got: list[int] = []

    async def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))

    await receiver.replay(CONTAINER_STREAM, handle)
    sender.publish_event(event_subject(lab.root), container_event(0), message_id="0")
    await until(lambda: got == [0])
    await outage(lab, sender, receiver)
    for number in range(1, 6):
        sender.publish_event(event_subject(lab.root), container_event(number), message_id=str(number))
    assert sender.counters["events_pending"] == 5
    await recovery(lab, sender, receiver)
    await until(lambda: set(got) == set(range(6)))

    assert list(dict.fromkeys(got)) == [0, 1, 2, 3, 4, 5]
    assert sender.counters["events_pending"] == 0


async def test_requests_fail_at_once_during_an_outage(lab: BusLab) -> None:
    """Those that wait too: nobody sits out a deadline for a server that is gone."""
    client, server = await lab.bus(), await lab.bus()
    begun = asyncio.Event()

    async def never(_delivery: Delivery) -> Message:
        begun.set()
        await asyncio.Event().wait()
        return node_info(0)

    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    subscription = await server.serve(subject, never)
    await server.flush(60)
    waiting = asyncio.create_task(client.request(subject, node_info(1), timeout_s=30))
    await begun.wait()
    started = time.monotonic()
    await outage(lab, client, server)

    with pytest.raises(BusUnavailableError):
        await waiting
    with pytest.raises(BusUnavailableError):
        await client.request(subject, node_info(1), timeout_s=30)
    with pytest.raises(BusUnavailableError):
        await client.bucket(APPS).put("a", node_info(1))
    with pytest.raises(BusUnavailableError):
        await client.bucket(APPS).entries()
    assert time.monotonic() - started < 25
    assert not getattr(getattr(client, "connection", None), "_resp_map", {}), "failed requests are forgotten"
    for task in server_tasks(subscription):
        task.cancel()
    await lab.start_server()


def server_tasks(subscription: object) -> list[asyncio.Task[None]]:
    """The requests that a served subject works on, in either bus."""
    requests = getattr(subscription, "_requests", None)
    return list(requests.tasks if requests is not None else subscription._tasks)  # type: ignore[attr-defined]


async def test_everything_resumes(lab: BusLab) -> None:
    """Subscriptions, commands and micro services work again after a restart, and callbacks tell of it."""
    client, server = await lab.bus(), await lab.bus()
    got: list[int] = []
    told: list[str] = []

    async def echo(delivery: Delivery) -> Message:
        return delivery.message

    async def state(_delivery: Delivery) -> Message:
        return StateReply(epoch=1, steps=2, superseded=False, apps=())

    command = LIMIT_UPDATES.subject(lab.root, node="n1")
    await server.subscribe(CFS.pattern(lab.root), lambda delivery: got.append(number_of(delivery.message)))
    await server.serve(command, echo)
    await server.serve_queries("allocator", "0.1.0", "limits", {ALLOCATOR_STATE: state})
    server.on_reconnect(lambda: told.append("back"))
    server.on_reconnect(lambda: told.remove("nobody"))  # a callback with a bug must not stop the others
    server.on_reconnect(lambda: told.append("again"))

    for turn in (1, 2):
        await outage(lab, client, server)
        await recovery(lab, client, server)
        await until(lambda turn=turn: len(told) == 2 * turn)  # type: ignore[misc]
        await server.flush(60)
        client.publish(CFS.subject(lab.root, app="shop", node="n1"), node_info(turn))
        await until(lambda turn=turn: len(got) == turn)  # type: ignore[misc]
        assert number_of(await client.request(command, node_info(turn), timeout_s=5)) == turn
        reply = await client.request(ALLOCATOR_STATE.template.subject(lab.root), StateRequest(), timeout_s=5)
        assert isinstance(reply, StateReply)

    assert got == [1, 2]
    assert told == ["back", "again"] * 2


async def test_close_is_clean(lab: BusLab) -> None:
    """With everything delivered the report is empty; closing twice is harmless."""
    bus = await lab.bus()
    handled: list[int] = []
    await bus.subscribe(CFS.pattern(lab.root), lambda delivery: handled.append(number_of(delivery.message)))
    await bus.flush(60)
    bus.publish(CFS.subject(lab.root, app="shop", node="n1"), node_info(1))
    bus.publish_event(event_subject(lab.root), container_event(1), message_id="1")

    assert await bus.close(5) == {}
    assert await bus.close(5) == {}
    assert handled == [1]
    assert not bus.connected


async def test_close_reports_what_was_not_delivered(lab: BusLab) -> None:
    """Closing during an outage says how many facts are lost, and does not take long."""
    bus = await lab.bus()
    await outage(lab, bus)
    for number in range(3):
        bus.publish_event(event_subject(lab.root), container_event(number), message_id=str(number))
    started = time.monotonic()

    undelivered = await bus.close(2)

    assert undelivered == {"events": 3}
    assert time.monotonic() - started < 20
    await lab.start_server()
