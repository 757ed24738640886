"""Replays: every process hears everything that a stream holds, from the first fact, again after each start."""

from __future__ import annotations

import asyncio

from services._runtime.bus.api import Bus, Delivery, Replay
from tests.support.bus_lab import CONTAINER_STREAM, BusLab, container_event, event_subject, number_of
from tests.support.deadline import until


async def replay(bus: Bus, got: list[int]) -> Replay:
    async def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))

    return await bus.replay(CONTAINER_STREAM, handle)


def publish(bus: Bus, root: str, number: int) -> None:
    bus.publish_event(event_subject(root), container_event(number), message_id=f"event-{number}")


async def test_everyone_hears_everything(lab: BusLab) -> None:
    """Two at the same time, and a third one later: all from the first fact on."""
    bus, other = await lab.bus(), await lab.bus()
    for number in range(40):
        publish(bus, lab.root, number)
    await bus.flush(5)
    first: list[int] = []
    second: list[int] = []
    third: list[int] = []

    one, _ = await replay(bus, first), await replay(other, second)
    async with asyncio.timeout(5):
        await one.caught_up()
    assert first == list(range(40))
    publish(bus, lab.root, 40)
    await until(lambda: len(first) == len(second) == 41)
    await one.stop()
    late = await replay(await lab.bus(), third)
    async with asyncio.timeout(5):
        await late.caught_up()

    assert third == second == list(range(41))


async def test_an_empty_stream_is_caught_up_with_at_once(lab: BusLab) -> None:
    """Nobody waits for a fact that need not come."""
    bus = await lab.bus()
    got: list[int] = []

    subscription = await replay(bus, got)
    async with asyncio.timeout(5):
        await subscription.caught_up()

    assert got == []


async def test_a_replay_survives_a_server_restart(lab: BusLab) -> None:
    """What comes afterwards is heard; some may be heard twice."""
    bus = await lab.bus()
    got: list[int] = []
    publish(bus, lab.root, 1)
    await bus.flush(5)
    await replay(bus, got)
    await until(lambda: got == [1])

    await lab.stop_server()
    await until(lambda: not bus.connected)
    await lab.start_server()
    await until(lambda: bus.connected, within_s=30)
    publish(bus, lab.root, 2)

    await until(lambda: 2 in got, within_s=30)


async def test_garbage_does_not_keep_a_replay_from_catching_up(lab: BusLab) -> None:
    """It is counted and passed over."""
    bus = await lab.bus()
    await lab.publish_raw(event_subject(lab.root).text, b"\xff\xff")
    publish(bus, lab.root, 7)
    await bus.flush(5)
    got: list[int] = []

    subscription = await replay(bus, got)
    async with asyncio.timeout(5):
        await subscription.caught_up()

    assert got == [7]


async def test_what_a_restarted_server_tells_again_is_not_taken_for_the_rest(lab: BusLab) -> None:
    """It has forgotten how far the replay was: who has caught up has heard everything all the same."""
    bus = await lab.bus()
    for number in range(40):
        publish(bus, lab.root, number)
    await bus.flush(5)
    got: list[int] = []
    go_on = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))
        if len(got) == 20:
            await go_on.wait()

    subscription = await bus.replay(CONTAINER_STREAM, handle)
    await until(lambda: len(got) == 20)
    await lab.stop_server()
    await until(lambda: not bus.connected)
    await lab.start_server()
    await until(lambda: bus.connected, within_s=30)
    go_on.set()
    async with asyncio.timeout(15):
        await subscription.caught_up()

    assert set(got) == set(range(40))
