"""Commands and queries: replies, refusals, deadlines, concurrency."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from schemas.message import Message
from schemas.queries import StateReply, StateRequest
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.subjects import LIMIT_UPDATES
from services._runtime.bus.api import (
    BusError,
    Delivery,
    NoResponderError,
    RequestRefusedError,
    RequestTimeoutError,
)
from tests.support.bus_lab import BusLab, NatsLab, node_info, number_of
from tests.support.deadline import until


async def double(delivery: Delivery) -> Message:
    return node_info(2 * number_of(delivery.message))


async def test_request_and_reply(lab: BusLab) -> None:
    """The reply comes back to the one who asked."""
    client, server = await lab.bus(), await lab.bus()
    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    await server.serve(subject, double)
    await server.flush(60)

    replies = await asyncio.gather(*(client.request(subject, node_info(n), timeout_s=2) for n in range(50)))

    assert [number_of(reply) for reply in replies] == [2 * n for n in range(50)]


async def test_a_request_is_sent_before_anybody_waits_for_its_reply(lab: BusLab) -> None:
    """Replies are waited for in any order, and later."""
    client, server = await lab.bus(), await lab.bus()
    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    asked: list[int] = []

    async def note(delivery: Delivery) -> Message:
        asked.append(number_of(delivery.message))
        return await double(delivery)

    await server.serve(subject, note)
    await server.flush(60)

    pending = [client.send_request(subject, node_info(n), timeout_s=60) for n in range(3)]
    client.write_now()
    await until(lambda: asked == [0, 1, 2])

    assert [number_of(await reply()) for reply in reversed(pending)] == [4, 2, 0]
    with pytest.raises(NoResponderError):
        await client.send_request(LIMIT_UPDATES.subject(lab.root, node="nobody"), node_info(1), timeout_s=60)()


async def test_no_responder_is_told_at_once(lab: BusLab) -> None:
    """Nobody there is another thing than no answer in time."""
    bus = await lab.bus()
    started = time.monotonic()

    with pytest.raises(NoResponderError):
        await bus.request(LIMIT_UPDATES.subject(lab.root, node="nobody"), node_info(1), timeout_s=5)

    assert time.monotonic() - started < 4


async def test_request_times_out(lab: BusLab) -> None:
    """A responder that takes too long costs the deadline, not more; its late reply harms nobody."""
    bus = await lab.bus()
    release = asyncio.Event()

    async def slow(delivery: Delivery) -> Message:
        await release.wait()
        return await double(delivery)

    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    await bus.serve(subject, slow)
    await bus.flush(60)

    with pytest.raises(RequestTimeoutError, match=r"within 0\.1 s"):
        await bus.request(subject, node_info(1), timeout_s=0.1)
    release.set()

    assert number_of(await bus.request(subject, node_info(4), timeout_s=2)) == 8


async def test_responder_that_raises_refuses(lab: BusLab) -> None:
    """A bug answers 500 and a refusal its own code; the responder serves on."""
    bus = await lab.bus()

    async def moody(delivery: Delivery) -> Message:
        number = number_of(delivery.message)
        if number == 1:
            raise ValueError("oops")
        if number == 2:
            raise RequestRefusedError(404, "no such application")
        return node_info(number)

    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    await bus.serve(subject, moody)
    await bus.flush(60)

    with pytest.raises(RequestRefusedError, match="oops") as bug:
        await bus.request(subject, node_info(1), timeout_s=2)
    with pytest.raises(RequestRefusedError, match="no such application") as refusal:
        await bus.request(subject, node_info(2), timeout_s=2)
    reply = await bus.request(subject, node_info(3), timeout_s=2)

    assert bug.value.code == 500
    assert refusal.value.code == 404
    assert number_of(reply) == 3
    assert bus.counters["handler_errors"] == 1


async def test_requests_are_served_concurrently(lab: BusLab) -> None:
    """Every request runs in a task of its own: all of them meet before the first is answered."""
    bus = await lab.bus()
    everyone = asyncio.Barrier(20)

    async def meet(delivery: Delivery) -> Message:
        await everyone.wait()
        return await double(delivery)

    command = LIMIT_UPDATES.subject(lab.root, node="n1")
    await bus.serve(command, meet)
    await bus.flush(60)
    await asyncio.gather(*(bus.request(command, node_info(n), timeout_s=5) for n in range(20)))


async def test_garbage_request_is_refused(lab: BusLab) -> None:
    """Garbage without a reply subject is counted, and the responder serves on."""
    bus = await lab.bus()
    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    await bus.serve(subject, double)
    await bus.flush(60)

    await lab.publish_raw(subject.text, b"\xff\xff")
    await until(lambda: bus.counters.get("undecodable_no_reply_subject") == 1)

    assert number_of(await bus.request(subject, node_info(1), timeout_s=2)) == 2


async def test_stop_answers_what_is_under_way(lab: BusLab) -> None:
    """Requests that were accepted are answered before stop returns; later ones find nobody."""
    client, server = await lab.bus(), await lab.bus()
    begun = asyncio.Event()
    release = asyncio.Event()

    async def slow(delivery: Delivery) -> Message:
        begun.set()
        await release.wait()
        return await double(delivery)

    subject = LIMIT_UPDATES.subject(lab.root, node="n1")
    subscription = await server.serve(subject, slow)
    await server.flush(60)
    request = asyncio.create_task(client.request(subject, node_info(3), timeout_s=5))
    await begun.wait()
    stop = asyncio.create_task(subscription.stop())
    release.set()
    await stop

    assert number_of(await request) == 6
    with pytest.raises(NoResponderError):
        await client.request(subject, node_info(1), timeout_s=2)


async def state(delivery: Delivery) -> Message:
    assert isinstance(delivery.message, StateRequest)
    if delivery.message.app == "unknown":
        raise RequestRefusedError(404, "no application 'unknown'")
    return StateReply(epoch=1, steps=2, superseded=False, apps=())


async def test_queries(lab: BusLab) -> None:
    """A micro service answers on cmd.<service>.<name>; requests that do not fit are refused with code 400."""
    client, server = await lab.bus(), await lab.bus()
    service = await server.serve_queries("allocator", "0.1.0", "limits", {ALLOCATOR_STATE: state})
    await server.flush(60)
    subject = ALLOCATOR_STATE.template.subject(lab.root)

    reply = await client.request(subject, StateRequest(), timeout_s=2)
    with pytest.raises(RequestRefusedError, match="unknown") as missing:
        await client.request(subject, StateRequest(app="unknown"), timeout_s=2)
    with pytest.raises(RequestRefusedError, match="expected") as wrong:
        await client.request(subject, node_info(1), timeout_s=2)
    with pytest.raises(NoResponderError):
        await client.request(ALLOCATOR_EXPLAIN.template.subject(lab.root), StateRequest(), timeout_s=2)
    await service.stop()
    await service.stop()

    assert reply == StateReply(epoch=1, steps=2, superseded=False, apps=())
    assert missing.value.code == 404
    assert wrong.value.code == 400
    with pytest.raises(NoResponderError):
        await client.request(subject, StateRequest(), timeout_s=2)


async def test_queries_in_json_by_hand(nats_server: object) -> None:
    """`nats req` with nothing or JSON gets JSON, errors carry the service headers, `nats service ls` sees it."""
    lab = NatsLab(nats_server)  # type: ignore[arg-type]
    bus = await lab.bus()
    await bus.serve_queries("allocator", "0.1.0", "limits", {ALLOCATOR_STATE: state})
    await bus.flush(60)
    raw = await lab.raw()
    subject = ALLOCATOR_STATE.template.subject(lab.root).text

    empty = await raw.request(subject, b"", timeout=2)
    refused = await raw.request(subject, b'{"app": "unknown"}', timeout=2)
    garbage = await raw.request(subject, b"{{{", timeout=2)
    info = await raw.request("$SRV.INFO.allocator", b"", timeout=2)

    assert json.loads(empty.data)["steps"] == 2
    assert refused.headers is not None
    assert garbage.headers is not None
    assert refused.headers["Nats-Service-Error-Code"] == "404"
    assert json.loads(refused.data)["code"] == 404
    assert garbage.headers["Nats-Service-Error-Code"] == "400"
    assert json.loads(info.data)["endpoints"][0]["subject"] == subject
    await lab.close()


async def test_bad_service_version_is_a_bus_error(nats_server: object) -> None:
    """NATS wants a semantic version."""
    lab = NatsLab(nats_server)  # type: ignore[arg-type]
    bus = await lab.bus()

    with pytest.raises(BusError, match="version"):
        await bus.serve_queries("allocator", "latest", "limits", {ALLOCATOR_STATE: state})
    await lab.close()
