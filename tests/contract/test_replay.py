"""Replays: every process hears everything that a stream holds, from the first fact, again after each start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from schemas.codec import decode
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
    await bus.flush(60)
    first: list[int] = []
    second: list[int] = []
    third: list[int] = []

    one, _ = await replay(bus, first), await replay(other, second)
    async with asyncio.timeout(60):
        await one.caught_up()
    assert first == list(range(40))
    publish(bus, lab.root, 40)
    await until(lambda: len(first) == len(second) == 41)
    await one.stop()
    late = await replay(await lab.bus(), third)
    async with asyncio.timeout(60):
        await late.caught_up()

    assert third == second == list(range(41))


async def test_an_empty_stream_is_caught_up_with_at_once(lab: BusLab) -> None:
    """Nobody waits for a fact that need not come."""
    bus = await lab.bus()
    got: list[int] = []

    subscription = await replay(bus, got)
    async with asyncio.timeout(60):
        await subscription.caught_up()

    assert got == []


async def test_a_replay_survives_a_server_restart(lab: BusLab) -> None:
    """What comes afterwards is heard; some may be heard twice."""
    bus = await lab.bus()
    got: list[int] = []
    publish(bus, lab.root, 1)
    await bus.flush(60)
    await replay(bus, got)
    await until(lambda: got == [1])

    await lab.stop_server()
    await until(lambda: not bus.connected)
    await lab.start_server()
    await until(lambda: bus.connected)
    publish(bus, lab.root, 2)

    await until(lambda: 2 in got)


async def test_garbage_does_not_keep_a_replay_from_catching_up(lab: BusLab) -> None:
    """It is counted and passed over."""
    bus = await lab.bus()
    await lab.publish_raw(event_subject(lab.root).text, b"\xff\xff")
    publish(bus, lab.root, 7)
    await bus.flush(60)
    got: list[int] = []

    subscription = await replay(bus, got)
    async with asyncio.timeout(60):
        await subscription.caught_up()

    assert got == [7]


async def test_what_a_restarted_server_tells_again_is_not_taken_for_the_rest(lab: BusLab) -> None:
    """It has forgotten how far the replay was: who has caught up has heard everything all the same."""
    bus = await lab.bus()
    for number in range(40):
        publish(bus, lab.root, number)
    await bus.flush(60)
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
    await until(lambda: bus.connected)
    go_on.set()
    async with asyncio.timeout(60):
        await subscription.caught_up()

    assert set(got) == set(range(40))


async def test_a_history_of_several_batches_comes_in_order_and_once(lab: BusLab) -> None:
    """And what is stored meanwhile follows."""
    bus = await lab.bus()
    for number in range(1_100):
        publish(bus, lab.root, number)
    await bus.flush(60)
    got: list[int] = []

    subscription = await replay(await lab.bus(), got)
    publish(bus, lab.root, 1_100)
    async with asyncio.timeout(60):
        await subscription.caught_up()
    await until(lambda: len(got) == 1_101)

    assert got == list(range(1_101))


async def test_an_event_of_the_history_whose_handler_fails_comes_again(lab: BusLab) -> None:
    """Nothing is lost, and it has caught up only once that one has been handled."""
    bus = await lab.bus()
    for number in range(40):
        publish(bus, lab.root, number)
    await bus.flush(60)
    got: list[int] = []
    failures = [20, 20, 30]

    async def handle(delivery: Delivery) -> None:
        number = number_of(delivery.message)
        if number in failures:
            failures.remove(number)
            raise ValueError(number)
        got.append(number)

    subscription = await bus.replay(CONTAINER_STREAM, handle)
    async with asyncio.timeout(60):
        await subscription.caught_up()

    assert set(got) == set(range(40))
    assert failures == []


async def test_a_history_that_breaks_off_goes_on_where_it_did(lab: BusLab) -> None:
    """The server goes away while most of it has not been sent yet."""
    bus = await lab.bus()
    for number in range(1_600):
        publish(bus, lab.root, number)
    await bus.flush(60)
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
    go_on.set()
    await lab.start_server()
    async with asyncio.timeout(60):
        await subscription.caught_up()

    assert set(got) == set(range(1_600))


async def test_a_replay_behind_a_sequence_tells_only_what_follows(lab: BusLab) -> None:
    """Also where nothing does yet."""
    bus = await lab.bus()
    for number in range(1, 1_101):
        publish(bus, lab.root, number)
    await bus.flush(60)
    got: dict[int, list[int]] = {after: [] for after in (0, 40, 1_099, 1_100)}

    for after, numbers in got.items():
        replaying = await bus.replay(CONTAINER_STREAM, _handler(numbers), after=after)
        async with asyncio.timeout(60):
            await replaying.caught_up()
        assert numbers == list(range(after + 1, 1_101))
    publish(bus, lab.root, 1_101)

    await until(lambda: all(numbers[-1:] == [1_101] for numbers in got.values()))
    assert all(numbers == list(range(after + 1, 1_102)) for after, numbers in got.items())


def _handler(got: list[int]) -> Callable[[Delivery], Awaitable[None]]:
    async def handle(delivery: Delivery) -> None:
        got.append(number_of(delivery.message))

    return handle


async def test_a_replay_behind_a_sequence_stays_behind_it_when_the_server_restarts(lab: BusLab) -> None:
    """What is told again is not what was left out."""
    bus = await lab.bus()
    for number in range(1, 41):
        publish(bus, lab.root, number)
    await bus.flush(60)
    got: list[int] = []
    replaying = await bus.replay(CONTAINER_STREAM, _handler(got), after=30)
    async with asyncio.timeout(60):
        await replaying.caught_up()

    await lab.stop_server()
    await until(lambda: not bus.connected)
    await lab.start_server()
    await until(lambda: bus.connected)
    publish(bus, lab.root, 41)

    await until(lambda: 41 in got)
    assert set(got) == set(range(31, 42))


async def test_one_event_is_read_as_it_is_stored(lab: BusLab) -> None:
    """By its sequence, whatever it holds."""
    bus = await lab.bus()
    publish(bus, lab.root, 7)
    await bus.flush(60)
    await lab.publish_raw(event_subject(lab.root).text, b"\xff garbage")
    seen: list[int] = []
    replaying = await bus.replay(CONTAINER_STREAM, _handler([]), seen.append)
    await until(lambda: seen == [2], what="garbage is stored as the second")
    await replaying.stop()

    first, second = await bus.event_at(CONTAINER_STREAM, 1), await bus.event_at(CONTAINER_STREAM, 2)
    assert first is not None
    assert (first.sequence, number_of(decode(first.data))) == (1, 7)
    assert second is not None
    assert second.data == b"\xff garbage"
    assert [await bus.event_at(CONTAINER_STREAM, sequence) for sequence in (-1, 0, 3)] == [None] * 3
