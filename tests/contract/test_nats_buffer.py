"""Observations that stay as they came until they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.subjects import CFS
from services._runtime.bus import nats_subscriptions
from services._runtime.bus.api import BusUnavailableError, Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_subscriptions import NatsBuffer
from services._runtime.bus.options import BusOptions
from tests.support.bus_lab import node_info, number_of
from tests.support.deadline import until

SUBJECT = CFS.subject("tb", app="shop", node="n1")


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats() as started:
        yield started


async def connect(server: EmbeddedNats) -> NatsBus:
    return await NatsBus.connect(BusOptions(servers=(server.url,), connect_deadline_s=60.0))


async def test_what_comes_waits_until_it_is_asked_for_and_keeps_its_order(server: EmbeddedNats) -> None:
    bus = await connect(server)
    got: list[Delivery] = []
    buffer = await bus.subscribe_buffered(CFS.pattern("tb"), got.append)
    for number in range(500):
        bus.publish(SUBJECT, node_info(number))
    await bus.flush(60)  # what the server sends before its answer has come
    assert got == []

    buffer.deliver()
    assert [number_of(delivery.message) for delivery in got] == list(range(500))
    assert {delivery.subject for delivery in got} == {SUBJECT.text}
    assert bus.counters["received"] == 500
    buffer.deliver()
    assert len(got) == 500
    await bus.close(2)


async def test_what_has_come_before_the_end_is_handled(server: EmbeddedNats) -> None:
    bus = await connect(server)
    got: list[Delivery] = []
    buffer = await bus.subscribe_buffered(CFS.pattern("tb"), got.append)
    bus.publish(SUBJECT, node_info(1))
    await bus.flush(60)
    await buffer.stop()
    await buffer.stop()
    assert len(got) == 1

    bus.publish(SUBJECT, node_info(2))
    await bus.flush(60)
    buffer.deliver()
    assert len(got) == 1
    await bus.close(2)


async def test_more_than_fits_is_handed_over_unasked(server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never asks holds no more than a buffer, and nothing is lost."""
    monkeypatch.setattr(nats_subscriptions, "BUFFERED_BYTES", 10_000)
    bus = await connect(server)
    got: list[int] = []
    buffer = await bus.subscribe_buffered(CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message)))
    for number in range(2_000):
        bus.publish(SUBJECT, node_info(number))
    await bus.flush(60)
    # A message has more than 20 bytes: of 2,000 at most 500 wait.
    await until(lambda: len(got) >= 1_500, what="what does not fit")
    await bus.flush(60)
    buffer.deliver()
    assert got == list(range(2_000))
    await bus.close(2)


async def test_messages_without_data_fill_a_buffer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject and two objects take memory: 100 of at least 150 bytes are more than 10,000."""
    monkeypatch.setattr(nats_subscriptions, "BUFFERED_BYTES", 10_000)
    bus = NatsBus(BusOptions())
    buffer = NatsBuffer(bus, lambda _: None)
    for _ in range(100):
        buffer._take(SUBJECT.text.encode(), b"", b"")
    assert bus.counters["received"] == 0
    await asyncio.sleep(0)  # a turn of the loop
    assert bus.counters["received"] == 100


async def test_garbage_and_a_handlers_error_are_counted_and_end_nothing(server: EmbeddedNats) -> None:
    bus = await connect(server)
    got: list[int] = []

    def handle(delivery: Delivery) -> None:
        if number_of(delivery.message) == 1:
            raise RuntimeError("a bug")
        got.append(number_of(delivery.message))

    buffer = await bus.subscribe_buffered(CFS.pattern("tb"), handle)
    await bus.connection.publish(SUBJECT.text, b"\xc1\xff")
    for number in (1, 2):
        bus.publish(SUBJECT, node_info(number))
    await bus.flush(60)
    buffer.deliver()
    assert got == [2]
    assert bus.counters["undecodable_malformed"] == 1
    assert bus.counters["handler_errors"] == 1
    await bus.close(2)


async def test_after_an_outage_it_hears_again() -> None:
    async with EmbeddedNats() as first:
        port = first.port
        bus = await connect(first)
        got: list[int] = []
        buffer = await bus.subscribe_buffered(
            CFS.pattern("tb"), lambda delivery: got.append(number_of(delivery.message))
        )
    async with EmbeddedNats(port=port):

        def heard() -> bool:
            bus.publish(SUBJECT, node_info(7))
            buffer.deliver()
            return bool(got)

        await until(heard, what="what is published after the outage")
        await bus.close(2)
    assert set(got) == {7}


async def test_without_a_connection_it_says_so() -> None:
    bus = NatsBus(BusOptions())
    with pytest.raises(BusUnavailableError, match="no connection yet"):
        await bus.subscribe_buffered(CFS.pattern("tb"), lambda _: None)
