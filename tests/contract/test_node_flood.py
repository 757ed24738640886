"""A node that floods: the server sends nothing more of it for a while; the others are received as before."""

from __future__ import annotations

import pytest

from schemas.message import Message
from schemas.subjects import CFS, MEMORY_REQUESTS
from services._runtime.bus.api import Bus, Delivery, NoResponderError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Telemetry
from services.allocator.agent_subscriptions import AgentSubscriptions
from services.allocator.flood_guard import FIRST_QUARANTINE_S, Kind
from services.allocator.settings import AllocatorSettings
from tests.support.bus_lab import BusLab, node_info
from tests.support.deadline import until
from tests.support.manual_clock import ManualClock

FLOODER, HONEST, LATER = "gpu-01", "gpu-02", "gpu-03.rack"
APP, OTHER = "shop", "bank.eu"


class Receiver:
    """An owner's subscriptions; what it has received, by node."""

    def __init__(self, bus: Bus, clock: ManualClock) -> None:
        self.bus = bus
        self.received: list[tuple[str, str]] = []
        runtime = Runtime(AllocatorSettings.load({}), bus, clock, Telemetry(), get_logger("test"))
        self.agents = AgentSubscriptions(runtime, self._take, self._answer)
        self.agents.set_nodes({FLOODER, HONEST})

    def _take(self, delivery: Delivery) -> None:
        ids = CFS.parse(self.bus.root, delivery.subject)
        self.received.append((ids["app"], ids["node"]))

    async def _answer(self, delivery: Delivery) -> Message:
        return delivery.message

    def count(self, app: str, node: str) -> int:
        return self.received.count((app, node))


async def send(bus: Bus, app: str, node: str, count: int = 1) -> None:
    for number in range(count):
        bus.publish(CFS.subject(bus.root, app=app, node=node), node_info(number, node))
        if number % 500 == 499:
            await bus.flush(60)
    await bus.flush(60)


async def ask(bus: Bus, app: str, node: str) -> Message:
    subject = MEMORY_REQUESTS.subject(bus.root, app=app, node=node)
    return await bus.request(subject, node_info(7, node), timeout_s=60)


async def quarantined(receiver: Receiver, sender: Bus, clock: ManualClock, node: str = FLOODER) -> None:
    """Flood until the node is quarantined, and the server has been told."""
    await receiver.bus.flush(60)
    await send(sender, APP, node, 2_000)
    await until(lambda: receiver.agents.guard.dropped[Kind.BATCH] > 1_000, what="a flood that is dropped")
    await clock.advance(0.2)
    await send(sender, APP, node, 1_000)
    await until(lambda: receiver.agents.quarantined == {node}, what="a quarantine")
    await until(lambda: {by for by, _ in receiver.agents._open} == {"node"}, what="subscriptions by node")
    await receiver.bus.flush(60)


async def test_a_flooding_node_is_unsubscribed_and_others_are_received(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    for app in (APP, OTHER):
        await receiver.agents.subscribe(app)
    await quarantined(receiver, sender, clock)
    dropped, read = receiver.agents.guard.dropped[Kind.BATCH], receiver.count(APP, FLOODER)

    await send(sender, APP, FLOODER, 500)
    for app in (APP, OTHER):
        await send(sender, app, HONEST)
    await send(sender, "of another replica", HONEST)

    await until(lambda: {(APP, HONEST), (OTHER, HONEST)} <= set(receiver.received), what="what the other node sent")
    assert receiver.count(APP, FLOODER) == read
    assert receiver.agents.guard.dropped[Kind.BATCH] == dropped, "the server sends nothing of it"
    assert receiver.count("of another replica", HONEST) == 0
    assert await ask(sender, OTHER, HONEST)
    with pytest.raises(NoResponderError):
        await ask(sender, APP, FLOODER)
    await receiver.agents.stop()


async def test_a_flooding_node_that_is_not_registered_is_unsubscribed_too(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    await receiver.agents.subscribe(APP)

    await quarantined(receiver, sender, clock, LATER)

    assert receiver.received == []
    await receiver.agents.stop()


async def test_a_node_that_floods_another_replicas_application_meanwhile_is_unsubscribed_too(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    await receiver.agents.subscribe(APP)
    await quarantined(receiver, sender, clock)
    await until(lambda: len(receiver.agents._open) == 1, what="by node")
    await receiver.bus.flush(60)

    for _ in range(2):
        await send(sender, OTHER, HONEST, 2_000)
        await clock.advance(0.2)
    await send(sender, OTHER, HONEST, 1_000)

    await until(lambda: receiver.agents.quarantined == {FLOODER, HONEST}, what="both")
    await receiver.agents.stop()


async def test_a_node_that_registers_meanwhile_is_received(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    await receiver.agents.subscribe(APP)
    await quarantined(receiver, sender, clock)

    receiver.agents.set_nodes({FLOODER, HONEST, LATER})
    await until(lambda: len(receiver.agents._open) == 2, what="a subscription")
    await receiver.bus.flush(60)
    await send(sender, APP, LATER)

    await until(lambda: receiver.count(APP, LATER) == 1, what="what the new node sent")
    await receiver.agents.stop()


async def test_a_quarantine_ends_and_all_nodes_are_received_again(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    await receiver.agents.subscribe(APP)
    await quarantined(receiver, sender, clock)
    await receiver.agents.subscribe(OTHER)  # acquired meanwhile
    read = receiver.count(APP, FLOODER)

    await clock.advance(FIRST_QUARANTINE_S)
    receiver.agents.refresh()
    await until(lambda: set(receiver.agents._open) == {("app", APP), ("app", OTHER)}, what="by application again")
    await receiver.bus.flush(60)
    await send(sender, APP, FLOODER)
    await send(sender, OTHER, HONEST)

    await until(lambda: receiver.count(APP, FLOODER) == read + 1 and receiver.count(OTHER, HONEST) == 1, what="both")
    assert receiver.agents.quarantined == set()
    await receiver.agents.stop()


async def test_batches_of_a_node_that_is_not_registered_are_dropped_until_it_is(lab: BusLab) -> None:
    clock, sender = ManualClock(), await lab.bus()
    receiver = Receiver(await lab.bus(), clock)
    await receiver.agents.subscribe(APP)
    await receiver.bus.flush(60)
    await send(sender, APP, LATER)
    await until(lambda: receiver.agents.unregistered == 1, what="a batch that is dropped")

    receiver.agents.set_nodes({FLOODER, HONEST, LATER})
    await send(sender, APP, LATER)

    await until(lambda: receiver.count(APP, LATER) == 1, what="what it sent after that")
    await receiver.agents.stop()


async def test_what_is_screened_takes_no_room_of_what_waits(lab: BusLab) -> None:
    """Ten times as many messages as may wait, of a node that is refused: none of another node's is lost."""
    sender, bus, got = await lab.bus(), await lab.bus(), []
    await bus.subscribe(
        CFS.pattern(lab.root, app=APP), got.append, screen=lambda subject, _size: not subject.endswith(FLOODER)
    )
    await bus.flush(60)
    for _ in range(10):
        await send(sender, APP, FLOODER, 8_192)
        await send(sender, APP, HONEST)

    await until(lambda: len(got) == 10, what="what the other node sent")
    assert bus.counters["dropped_slow"] == 0
    assert bus.counters["received"] == 10
